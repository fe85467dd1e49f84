"""The cold store of an agent, with real services: what they take and give, and what trouble becomes."""

from __future__ import annotations

import asyncio
import importlib
import logging
from pathlib import Path

import pytest

from hostagent import limits
from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig, SecretPlace
from hostagent.cold.objects import RECORD_BYTES, object_name
from hostagent.cold.opendal_store import OpendalStore
from hostagent.cold.stores import ColdStoreError
from hostagent.core import effects, events
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from kvdaemon.errors import CannotRunError
from tests.unit.hostagent.cold_harness import (
    SIZE,
    BrokenStore,
    babbling_server,
    bench,
    hung,
    impatient,
    key,
    redis_config,
    redis_server,
    round_trip,
    silent_server,
    warnings_of,
)
from tests.unit.hostagent.s3_server import s3_config, s3_server

DONE, STORED = LoadOutcome.DONE, SaveOutcome.STORED
pytest.importorskip("opendal", reason="no opendal here: pip install 'kvcast[cold]'")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that went are tried again at once."""
    monkeypatch.setattr(limits, "COLD_RETRY_S_MIN", 0.01)
    monkeypatch.setattr(limits, "COLD_RETRY_S_MAX", 0.02)


@pytest.fixture
def fs(tmp_path: Path) -> ColdConfig:
    return ColdConfig("fs", {"root": str(tmp_path / "store")}, timeout_s=5)


def path_of(config: ColdConfig, number: int) -> Path:
    return Path(config.options["root"]) / object_name(key(number))


def test_a_file_system(fs: ColdConfig) -> None:
    async def scenario() -> None:
        async with bench(fs) as made:
            await round_trip(made)
        root = Path(fs.options["root"])
        files = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
        assert files == [object_name(key(2))], "no trial and nothing half written is left"
        assert path_of(fs, 2).stat().st_size == RECORD_BYTES + SIZE
        async with bench(fs) as another:
            await another.until(ColdState.ON)
            assert await another.load(2) is DONE, "what one node wrote, another one reads"

    asyncio.run(scenario())


def test_redis_with_a_password_from_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    password = "correct-horse-battery"
    (tmp_path / "password").write_text(f"{password}\n")
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        with redis_server(tmp_path, password) as server:
            secrets = {"password": SecretPlace(file=str(tmp_path / "password"))}
            config = redis_config(server.port, secrets=secrets, timeout_s=0.5, options={"db": "2"})
            async with bench(config) as made:
                await round_trip(made)
                assert password not in repr((config, made.tier.config, open_store(config)))
            (tmp_path / "password").write_text("wrong-horse-battery")
            async with bench(config) as made:
                await made.tried()
                assert made.tier.state is ColdState.AWAY
                assert "wrong-horse-battery" not in made.tier.reason

    asyncio.run(scenario())
    assert "horse-battery" not in caplog.text


def test_s3_as_motos_test_server_plays_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_module = pytest.importorskip("moto.server", reason="no moto here: pip install 'moto[server]'")
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("KVCAST_TEST_S3_SECRET", "shared-secret")
    (tmp_path / "id").write_text("an-id")
    server = server_module.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    stopped = False
    try:
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id="x", aws_secret_access_key="y", region_name="us-east-1"
        )
        client.create_bucket(Bucket="pool")
        config = ColdConfig(
            "s3",
            {"bucket": "pool", "endpoint": endpoint, "region": "us-east-1"},
            {
                "access_key_id": SecretPlace(file=str(tmp_path / "id")),
                "secret_access_key": SecretPlace(variable="KVCAST_TEST_S3_SECRET"),
            },
            timeout_s=5,
        )

        async def scenario() -> None:
            nonlocal stopped
            async with bench(config) as made:
                await round_trip(made)
                await asyncio.to_thread(client.put_object, Bucket="pool", Key=object_name(key(2)), Body=b"garbage")
                assert await made.look(2) == ([], [], [2])
                assert await made.load(2) is LoadOutcome.DAMAGED
                await asyncio.to_thread(server.stop)
                stopped = True
                while made.tier.state is not ColdState.AWAY:
                    assert await made.load(2) is LoadOutcome.FAILED

        asyncio.run(scenario())
    finally:
        if not stopped:
            server.stop()


@pytest.mark.parametrize(
    ("damage", "looks_right"),
    [
        (lambda whole: whole[:100], False),
        (lambda whole: b"", False),
        (lambda whole: whole[:-1], True),
        (lambda whole: whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:], True),
        (lambda whole: bytes([whole[0] ^ 1]) + whole[1:], False),
        (lambda whole: bytes(len(whole)), False),
    ],
    ids=["short", "empty", "cut", "flipped", "record flipped", "zeros"],
)
def test_garbage_is_a_miss_and_never_bytes(fs: ColdConfig, damage, looks_right: bool) -> None:
    async def scenario() -> None:
        async with bench(fs) as made:
            await made.until(ColdState.ON)
            await made.save(1)
            path = path_of(fs, 1)
            path.write_bytes(damage(path.read_bytes()))
            assert await made.look(1) == (([1], [], []) if looks_right else ([], [], [1]))
            assert await made.load(1) is LoadOutcome.DAMAGED
            assert made.tier.state is ColdState.ON, "garbage is no outage"

    asyncio.run(scenario())


def test_another_chunks_object_under_a_name_is_garbage(fs: ColdConfig) -> None:
    async def scenario() -> None:
        async with bench(fs) as made:
            await made.until(ColdState.ON)
            await made.save(1)
            await made.save(2)
            path_of(fs, 1).write_bytes(path_of(fs, 2).read_bytes())
            assert await made.look(1) == ([], [], [1])
            assert await made.load(1) is LoadOutcome.DAMAGED

    asyncio.run(scenario())


def test_a_killed_redis_is_one_line_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        with redis_server(tmp_path) as server:
            async with bench(redis_config(server.port)) as made:
                await made.until(ColdState.ON)
                await made.save(1)
                server.kill()
                with impatient(made):
                    for number in range(3):
                        assert await made.look(number) == ([], [], [])
                assert made.tier.state is ColdState.AWAY
                assert made.tier.counters.outages == 1
                await asyncio.to_thread(server.start)
                await made.until(ColdState.ON)
                assert await made.look(1) == ([], [1], []), "this redis keeps nothing"
                assert await made.save(1) is STORED
                assert await made.load(1) is DONE

    asyncio.run(scenario())
    (warning,) = warnings_of(caplog)
    assert "the cold store (redis) is away" in warning


def test_a_hung_redis_is_away_until_it_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        with redis_server(tmp_path) as server:
            async with bench(redis_config(server.port)) as made:
                await made.until(ColdState.ON)
                assert await made.save(1) is STORED
                with hung(server.process.pid), impatient(made):
                    assert [await made.load(1) for _ in range(3)] == [LoadOutcome.FAILED] * 3
                    await made.until(ColdState.AWAY)
                    assert made.tier.reason == "no answer within 0.3 s"
                await made.until(ColdState.ON)
                assert await made.load(1) is DONE

    asyncio.run(scenario())


def test_garbage_in_redis_is_a_miss(tmp_path: Path) -> None:
    async def scenario() -> None:
        with redis_server(tmp_path) as server:
            async with bench(redis_config(server.port, timeout_s=5)) as made:
                await made.until(ColdState.ON)
                await made.save(1)
                name = f"pool/{object_name(key(1))}"
                for garbage in ("", "short", "x" * (RECORD_BYTES + SIZE)):
                    assert server.ask("SET", name, garbage).startswith(b"+OK")
                    assert await made.look(1) == ([], [], [1])
                    assert await made.load(1) is LoadOutcome.DAMAGED
                assert made.tier.state is ColdState.ON, "garbage is no outage"
                server.ask("DEL", name)
                server.ask("LPUSH", name, "a list")
                assert await made.load(1) is LoadOutcome.FAILED
                server.ask("DEL", name)
                assert await made.load(1) is LoadOutcome.ABSENT

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer", [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"$3\r\nabc\r\n", b"HTTP/1.1 400\r\n\r\n", bytes(999)]
)
def test_a_server_that_is_no_redis_is_away(answer: bytes) -> None:
    async def scenario() -> None:
        with babbling_server(answer) as port:
            async with bench(redis_config(port, timeout_s=0.5)) as made:
                await made.tried()
                assert made.tier.state is ColdState.AWAY
                assert await made.load(1) in (LoadOutcome.FAILED, LoadOutcome.DAMAGED)

    asyncio.run(scenario())


def test_redis_keeps_the_names_of_earlier_releases(tmp_path: Path) -> None:
    """Agents before 0.2 had a client of their own: a key was the root without outer slashes and the object's name."""

    async def scenario() -> None:
        with redis_server(tmp_path) as server:
            async with bench(redis_config(server.port, options={"root": "//a/b/"})) as made:
                await made.until(ColdState.ON)
                assert await made.save(1) is STORED
                assert f"a/b/{object_name(key(1))}".encode() in server.ask("KEYS", "*").splitlines()
            async with bench(redis_config(server.port, options={"db": "3"})) as made:
                await made.until(ColdState.ON)
                assert await made.save(1) is STORED
                assert b"db3:keys=1" in server.ask("INFO", "keyspace")

    asyncio.run(scenario())


def test_connections_that_redis_ended_are_made_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        with redis_server(tmp_path) as server:
            async with bench(redis_config(server.port, timeout_s=5)) as made:
                await made.until(ColdState.ON)
                await made.save(1)
                assert server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").startswith(b":")
                assert await made.load(1) is DONE
                assert made.tier.counters.reads_failed == 0

    asyncio.run(scenario())


def test_many_reads_at_once_get_each_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        with redis_server(tmp_path) as server:
            store = open_store(redis_config(server.port))
            bodies = {f"{number}": bytes([number]) * (100_000 + number) for number in range(40)}
            await asyncio.gather(*(store.put(name, body) for name, body in bodies.items()))
            into = {name: [bytearray(1), bytearray(len(body) - 1)] for name, body in bodies.items()}
            reads = [store.get_into(name, list(map(memoryview, parts))) for name, parts in into.items()]
            assert await asyncio.gather(*reads) == [True] * 40
            assert {name: b"".join(parts) for name, parts in into.items()} == bodies
            await store.close()

    asyncio.run(scenario())


def test_a_full_redis_is_still_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with redis_server(tmp_path) as server:
            async with bench(redis_config(server.port, timeout_s=5)) as made:
                await made.until(ColdState.ON)
                await made.save(1)
                assert server.ask("CONFIG", "SET", "maxmemory", "1").startswith(b"+OK")
                assert [await made.save(number) for number in range(2, 5)] == [SaveOutcome.FAILED] * 3
                await made.until(ColdState.READING)
                assert await made.load(1) is DONE
                server.ask("CONFIG", "SET", "maxmemory", "0")
                await made.until(ColdState.ON)
                assert await made.save(2) is STORED

    asyncio.run(scenario())
    assert sum("takes nothing" in record.message for record in caplog.records) == 1


def test_a_full_file_system_takes_nothing(tmp_path: Path) -> None:
    """As one without write permission for root's folder: a file stands where the folder of objects would be."""

    async def scenario() -> None:
        root = tmp_path / "store"
        root.mkdir()
        (root / "kvcast").write_text("in the way")
        async with bench(ColdConfig("fs", {"root": str(root)})) as made:
            await made.tried()
            assert made.tier.state is not ColdState.ON

    asyncio.run(scenario())


def test_a_server_that_never_answers_counts_as_away_in_time() -> None:
    async def scenario() -> None:
        with silent_server() as port:
            async with bench(redis_config(port, timeout_s=0.2)) as made:
                await made.tried()
                assert made.tier.state is ColdState.AWAY
                assert made.tier.reason == "no answer within 0.2 s"
                assert await made.look(1) == ([], [], [])

    asyncio.run(scenario())


def test_what_hangs_ends_when_the_store_counts_as_away() -> None:
    async def scenario() -> None:
        store = BrokenStore()
        async with bench(ColdConfig("broken", timeout_s=0.2), store) as made:
            await made.until(ColdState.ON)
            store.hangs = True
            for number in range(40):
                made.tier.load(effects.LoadCold(made.put(number, 100), 0))
            ended = [await made.hear(events.ColdLoadEnded) for _ in range(40)]
            assert {event.outcome for event in ended} == {LoadOutcome.FAILED}  # type: ignore[union-attr]
            assert made.tier.state is ColdState.AWAY
            assert made.tier.counters.reads_failed >= 40
            assert store.calls < 40 + 10, "what waited for its turn was not asked for"
            store.hangs = False
            await made.until(ColdState.ON)

    asyncio.run(scenario())


def test_closing_while_everything_hangs() -> None:
    async def scenario() -> None:
        store = BrokenStore()
        async with bench(ColdConfig("broken", timeout_s=600), store) as made:
            await made.until(ColdState.ON)
            store.hangs = True
            for number in range(4):
                made.tier.save(effects.SaveCold(made.put(number)))
        assert store.closed

    asyncio.run(scenario())


def test_a_store_that_gives_back_something_else_is_not_used() -> None:
    class Liar(BrokenStore):
        async def put(self, name: str, content: bytes) -> None:
            await super().put(name, content[::-1])

    async def scenario() -> None:
        async with bench(ColdConfig("liar"), Liar()) as made:
            await made.tried()
            assert made.tier.state is ColdState.AWAY
            assert made.tier.reason == "it returned other bytes than the agent had put"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ColdConfig("nosuch"), "cold.scheme: the installed opendal does not know 'nosuch'"),
        (ColdConfig("s3"), "cold.options: s3: ConfigInvalid"),
        (
            ColdConfig("redis", {"endpoint": "rediss://127.0.0.1:6379"}),
            "cold.options.endpoint: opendal cannot reach Redis by TLS (rediss://): give tcp://HOST:PORT",
        ),
        (
            ColdConfig("redis", {"cluster_endpoints": "tcp://a:1, rediss://b:2"}),
            "cold.options.cluster_endpoints: opendal cannot reach Redis by TLS (rediss://)",
        ),
        (
            ColdConfig("redis", {"endpoint": "tcp://[::1]:6379"}),
            "cold.options.endpoint: opendal cannot reach Redis by an IPv6 address: give a host name",
        ),
        (ColdConfig("redis", {"endpoint": "unix:///run/redis"}), "cold.options: redis: ConfigInvalid"),
        (
            ColdConfig("redis", {}, {"password": SecretPlace(variable="KVCAST_NOT_SET")}),
            "cold.secrets.password: the environment variable KVCAST_NOT_SET is not set",
        ),
        (
            ColdConfig("redis", {}, {"password": SecretPlace(file="/nowhere/at/all")}),
            "cold.secrets.password: cannot read /nowhere/at/all: No such file or directory",
        ),
    ],
)
def test_what_cannot_be_opened_is_one_clear_line(config: ColdConfig, message: str) -> None:
    with pytest.raises(CannotRunError) as refused:
        open_store(config, {})
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_redis_without_an_address_is_the_one_of_this_machine() -> None:
    assert repr(open_store(ColdConfig("redis"), {})) == "OpendalStore(redis)"


@pytest.mark.parametrize("kind", [("RustPanic", Exception), ("PanicException", BaseException)])
def test_a_panic_of_the_client_is_a_failed_operation(kind: tuple[str, type[BaseException]]) -> None:
    panic = type(kind[0], (kind[1],), {})

    class Operator:
        async def read(self, name: str, offset: int, size: int) -> bytes:
            raise panic("rust future panicked: hunter2 is no key")

        async def exists(self, name: str) -> bool:
            raise panic("rust future panicked: hunter2 is no key")

        async def stat(self, name: str) -> None:
            raise panic("again")

        async def delete(self, name: str) -> None:
            raise KeyError(name)

    async def scenario() -> None:
        store = OpendalStore("any", Operator(), importlib.import_module("opendal.exceptions"), ("hunter2",))
        with pytest.raises(ColdStoreError, match=r"defect of its own: rust future panicked: \*\*\* is no key"):
            await store.exists("x")
        with pytest.raises(KeyError):
            await store.delete("x")

    asyncio.run(scenario())


def test_a_panic_at_the_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {})

    def broken(*_: object, **__: object) -> None:
        raise panic("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(importlib.import_module("opendal"), "AsyncOperator", broken)
    with pytest.raises(CannotRunError, match=r"cold\.options: fs: opendal failed with a defect of its own: called"):
        open_store(ColdConfig("fs", {"root": "/tmp"}))


def test_a_client_that_does_not_load_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "/lib/libc.so.6: version `GLIBC_2.38' not found (required by _opendal.abi3.so)"

    def broken(name: str) -> None:
        raise ImportError(words)

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(
        CannotRunError, match=r"does not load here: .*GLIBC_2.38.*; install a build of it for this system"
    ):
        open_store(ColdConfig("fs", {"root": "/tmp"}))


def test_who_may_not_delete_has_a_store_all_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCAST_TEST_S3_SECRET", "correct-horse-battery")

    async def scenario(port: int) -> None:
        async with bench(s3_config(port)) as made:
            await made.until(ColdState.ON)
            for _ in range(limits.COLD_FAILURES_MAX):
                made.tier.forget(effects.ForgetCold(key(1)))
            assert await made.save(1) is STORED
            assert await made.load(1) is DONE
            while made.tier.counters.deletes_failed < limits.COLD_FAILURES_MAX:
                await asyncio.sleep(0)
            assert made.tier.state is ColdState.ON

    with s3_server({"DELETE": (403, "AccessDenied", "no s3:DeleteObject")}) as port:
        asyncio.run(scenario(port))
    assert "the cold store (s3) deletes nothing: PermissionDenied" in caplog.text
