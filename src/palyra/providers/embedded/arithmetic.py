"""Simple calculations, parsed from plain words and evaluated without running code."""

import ast
import re

MAX_CHARS = 200
MAX_BITS = 4096
"""The maximum size of a number."""

_LEAD = re.compile(
    r"(?:(?:please|hey|hi|ok|so|and|palyra|(?:can|could|would) you|tell me)[\s,]+)*"
    r"(?:(?:what(?:['\u2019]s| is| are)|whats|how much (?:is|are)|calculate|compute|evaluate|solve|work out)\s+)?",
    re.IGNORECASE,
)
_TRAIL = re.compile(r"[\s,]*(?:please|for me|thanks|equals?(?: what)?)?[\s=?!.]*$", re.IGNORECASE)
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_WORDS: tuple[tuple[str, str], ...] = (
    (r"(?<=\d),(?=\d{3}\b)", ""),
    (r"\bto the power of\b|\^", "**"),
    (r"\bsquared\b", "**2"),
    (r"\bcubed\b", "**3"),
    (r"\bplus\b", "+"),
    (r"\bminus\b|\u2212|\u2013", "-"),
    (r"\btimes\b|\bmultiplied by\b|(?<=[\d)\s])[x\u00d7\u00b7](?=[\d(\s])", "*"),
    (r"\bdivided by\b|\bover\b|\u00f7|(?<=\d)\s*:\s*(?=\d)", "/"),
    (r"\bmod(?:ulo)?\b", "%"),
    (r"(?:%|\bpercent)\s+of\b", " / 100 *"),
)
_WORDS += tuple((rf"\b{word}\b", str(number)) for number, word in enumerate(_NUMBERS))
_SUM = re.compile(r"[-+*/%().\d\s]+")
_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}")
_OPERATION = re.compile(r"[\d)]\s*(?:\*\*|//|[-+*/%])\s*[-+(]*\s*[\d.]")


class CannotCalculate(Exception):
    """The sum has no answer that could be given; the message says why."""


def read_sum(text: str) -> str | None:
    """Return the calculation in the text as an expression, or None if there is none."""
    if len(text) > MAX_CHARS:
        return None
    rest = _TRAIL.sub("", _LEAD.sub("", text.strip(), count=1))
    if _DATE.fullmatch(rest):
        return None
    for word, sign in _WORDS:
        rest = re.sub(word, sign, rest, flags=re.IGNORECASE)
    return rest if _SUM.fullmatch(rest) and _OPERATION.search(rest) else None


def work_out(expression: str) -> str:
    """Return the value of a calculation as text, or raise `CannotCalculate`."""
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CannotCalculate("I can not read that sum.") from None
    except ZeroDivisionError:
        raise CannotCalculate("Nothing can be divided by zero.") from None
    except OverflowError:
        raise CannotCalculate("That number is too large for me.") from None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.12g}"
    return str(value)


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return _bounded(_apply(operator, _value(left), _value(right)))
        case _:
            raise ValueError


def _apply(operator: ast.operator, left: int | float, right: int | float) -> int | float:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return left // right
        case ast.Mod():
            return left % right
        case ast.Pow():
            return _power(left, right)
        case _:
            raise ValueError


def _power(base: int | float, exponent: int | float) -> int | float:
    # The size is computed beforehand; to find out by trying could take forever.
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise OverflowError
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError
    return float(result) if isinstance(result, float) else int(result)


def _bounded(number: int | float) -> int | float:
    if isinstance(number, int) and number.bit_length() > MAX_BITS:
        raise OverflowError
    if isinstance(number, float) and number in (float("inf"), float("-inf")):
        raise OverflowError
    return number
