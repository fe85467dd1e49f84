"""The integer expression of an #if: read and evaluated as C does, with Python's unbounded integers."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F_]+|0[bB][01_]+|\d[\d_]*\w*|[A-Za-z_]\w*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&|^()?:])"
)


class ConditionError(Exception):
    """One line that says what is wrong with the expression."""


def evaluate(text: str) -> int:
    """The value of an expression whose macros are expanded; names that are left count as 0. Raises ConditionError."""
    text = text.strip()
    tokens: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConditionError(f"cannot read '{text[at:].strip()}' in this condition")
        tokens.append(match.group(1))
        at = match.end()
    if not tokens:
        raise ConditionError("#if needs an expression")
    evaluation = _Evaluation(tokens)
    try:
        value = evaluation.ternary()
    except (ValueError, ZeroDivisionError) as problem:
        raise ConditionError(f"cannot evaluate this condition: {problem}") from problem
    if evaluation.at < len(tokens):
        raise ConditionError(f"unexpected '{tokens[evaluation.at]}' in this condition")
    return value


_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


class _Evaluation:
    """One pass over the tokens, by recursive descent."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def ternary(self) -> int:
        value = self.binary(0)
        if self.peek() != "?":
            return value
        self.take()
        yes = self.ternary()
        if self.take() != ":":
            raise ValueError("':' is missing")
        no = self.ternary()
        return yes if value else no

    def binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self.unary()
        value = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            op = self.take()
            value = _apply(op, value, self.binary(level + 1))
        return value

    def unary(self) -> int:
        token = self.take()
        if token == "!":
            return int(not self.unary())
        if token == "-":
            return -self.unary()
        if token == "+":
            return self.unary()
        if token == "~":
            return ~self.unary()
        if token == "(":
            value = self.ternary()
            if self.take() != ")":
                raise ValueError("')' is missing")
            return value
        if token == "":
            raise ValueError("it ends too early")
        if token[0].isdigit():
            return (
                int(token.rstrip("uUlL").replace("_", ""), 0)
                if token[:1] != "0" or len(token) == 1 or not token[1].isdigit()
                else int(token.rstrip("uUlL"), 8)
            )
        if token[0].isalpha() or token[0] == "_":
            return 0
        raise ValueError(f"unexpected '{token}'")


def _apply(op: str, left: int, right: int) -> int:
    if op in ("/", "%"):
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if op == "/" else left - quotient * right
    table = {
        "||": int(bool(left or right)),
        "&&": int(bool(left and right)),
        "|": left | right,
        "^": left ^ right,
        "&": left & right,
        "==": int(left == right),
        "!=": int(left != right),
        "<": int(left < right),
        "<=": int(left <= right),
        ">": int(left > right),
        ">=": int(left >= right),
        "+": left + right,
        "-": left - right,
        "*": left * right,
    }
    if op in table:
        return table[op]
    return left << right if op == "<<" else left >> right
