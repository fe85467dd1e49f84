"""What the C knows of datagrams, catalogs and trees is what Python says."""

from tools import generate_native_facts


def test_the_header_is_generated_from_what_python_says() -> None:
    assert generate_native_facts.OUTPUT.read_text() == generate_native_facts.generate(), "run `make wire`"
