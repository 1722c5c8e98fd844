"""SQL92 selectors: every statement of 7.2 to 7.4 as a case. All results are Java's own.

`tests/interop/test_rocketmq_selector.py` asks Java for many more.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.selector import SelectorError, UnmatchableError, compile_selector
from coherer._wire.rocketmq.selector.evaluation import read_double, read_int, read_long

THREE = {"a": "3"}
BOTH = {"a": "3", "b": "3"}
NONE: dict[str, str] = {}


def verdict(text: str, properties: dict[str, str]) -> str:
    try:
        return {True: "T", False: "F", None: "?"}[compile_selector(text).evaluate(properties)]
    except UnmatchableError:
        assert not compile_selector(text).matches(properties)
        return "!"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Text after a complete expression is ignored.
        ("a = 1 junk", "FF?"),
        ("a LIKE '3'", "FF?"),
        ("a + 1 = 4", "FF?"),
        ("a = 007", "FF?"),
        ("a)", "FF?"),
        ("5 = 5junk", "TTT"),
        ("a = 3 b \x0b", "TT?"),
        ("(a = 3) (b = 2)", "TT?"),
        ("a = 3.0f", "TT?"),
        ("a = 0x10", "FF?"),
        ("a = 3 --", "TT?"),
        # White space and comments.
        ("a\t=\n3\f", "TT?"),
        ("-- c\na = 3", "TT?"),
        ("a = --3\n 3", "TT?"),
        ("a = 3 /* x */ AND b = 3", "?T?"),
        ("/* a * b ** */ a", "FF?"),
        ("/**/a", "FF?"),
        # Names and keywords.
        ("NOTHING = 1", "???"),
        ("$a_1 = 1", "???"),
        ("not a", "TT?"),
        ("A = 3", "???"),
        ("a = 3 and b = 3", "?T?"),
        # NOT binds tight.
        ("NOT a = 3", "FF?"),
        ("NOT (a = 3)", "FF?"),
        ("NOT (a = 4)", "TT?"),
        ("NOT NOT a", "FF?"),
        # Precedence.
        ("a = 3 OR b = 2 AND c = 3", "TT?"),
        ("a = 1 OR b = 2 AND c = 3", "?F?"),
        # Properties as truth: text is never true.
        ("a", "FF?"),
        ("+a", "FF?"),
        ("a AND NULL", "FF?"),
        ("TRUE", "TTT"),
        ("NULL", "???"),
        ("NOT NULL", "???"),
        ("a OR TRUE", "TTT"),
        ("NULL AND FALSE", "FFF"),
        ("NULL OR FALSE", "???"),
        # Equality and unknowns.
        ("nope = 1", "???"),
        ("1 = nope", "FFF"),
        ("nope = nope2", "TTT"),
        ("1 <> nope", "TTT"),
        ("nope <> 1", "???"),
        ("a = b", "FT" + "T"),
        ("a IS NULL", "FFT"),
        ("a IS NOT NULL", "TTF"),
        ("NULL IS NULL", "TTT"),
        ("a IS NULL IS NULL", "FFF"),
        ("a = 1 IS NULL", "FFT"),
        # Text and numbers.
        ("a = '3'", "TT?"),
        ("a = 'it''s'", "FF?"),
        ("a = 3", "TT?"),
        ("a = 3L", "TT?"),
        ("a = 3.0", "TT?"),
        ("a = 3.", "TT?"),
        ("a > .5", "TT?"),
        ("a < 5E10", "TT?"),
        ("a < 1e10", "TT?"),
        ("a > 2147483648", "FF?"),
        ("3 = '3'", "TTT"),
        ("'3' = a", "TTF"),
        ("1 = 1.0", "TTT"),
        ("9007199254740993 = 9007199254740992.0", "TTT"),
        ("1 = 'x'", "!!!"),
        # Truth values.
        ("a = TRUE", "FF?"),
        ("'TRUE' = TRUE", "TTT"),
        ("TRUE = b", "F!F"),
        ("(a = 3) = b", "F!T"),
        ("1 = TRUE", "FFF"),
        ("1 <> TRUE", "TTT"),
        ("(a = 3) = TRUE", "TT?"),
        ("(a = 3) = 1", "FF?"),
        ("TRUE = FALSE", "FFF"),
        ("(b = 1) = (c = 1)", "TFT"),
        # Signs.
        ("-a = 1", "???"),
        ("a = -'x'", "FFT"),
        ("- 5 = -5", "TTT"),
        ("a > -5", "TT?"),
        ("-a = -b", "TTT"),
        ("-2147483648 = -2147483648", "TTT"),
        ("a > -(b = 'q')", "???"),
        # Ranges.
        ("a BETWEEN 1 AND 5", "TT?"),
        ("a BETWEEN 1 AND 2 AND b", "FF?"),
        ("a NOT BETWEEN 5 AND 1", "TT?"),
        ("a BETWEEN -5 AND -9", "FF?"),
        ("a BETWEEN b AND b", "?T?"),
        ("1 BETWEEN a AND 5", "FF?"),
        ("5 BETWEEN 1 AND 10", "TTT"),
        # Lists.
        ("a IN ('x', '3')", "TT?"),
        ("a NOT IN ('x')", "TT?"),
        ("(a) IN ('x')", "FF?"),
        ("+a IN ('3')", "TT?"),
        ("a NOT IN ('x','y') = TRUE", "TT?"),
    ],
)
def test_results(text: str, expected: str) -> None:
    assert "".join(verdict(text, each) for each in (THREE, BOTH, NONE)) == expected


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        ("d > 3", {"d": "3.5"}, "!"),
        ("d > 3.1", {"d": "3.5"}, "T"),
        ("d > 3", {"d": "2147483648"}, "!"),
        ("d > 3L", {"d": "2147483648"}, "!"),
        ("d > 2147483648", {"d": "2147483649"}, "T"),
        ("d = 3", {"d": "+3"}, "T"),
        ("d = 3", {"d": " 3"}, "!"),
        ("d = 3", {"d": "\u0663"}, "T"),
        ("d = 3.0", {"d": " 3d "}, "T"),
        ("d = 3.0", {"d": "0x1.8p1"}, "T"),
        ("d > 3.0", {"d": "Infinity"}, "T"),
        ("d > 3.0", {"d": "NaN"}, "T"),
        ("d = 3.0", {"d": "\u0663"}, "!"),
        ("d > e", {"d": "10", "e": "9"}, "T"),
        ("d > e", {"d": "x", "e": "9"}, "!"),
        ("d = e", {"d": "10", "e": "10.0"}, "F"),
        ("d >= e", {"d": "NaN", "e": "NaN"}, "T"),
        ("d < e", {"d": "-0.0", "e": "0.0"}, "T"),
        ("d = TRUE", {"d": "tRuE"}, "T"),
        ("TAGS = 'UA' AND KEYS IS NOT NULL", {"TAGS": "UA", "KEYS": "k1"}, "T"),
        ("d = 1 OR e = 'x'", {"d": "x", "e": "x"}, "!"),
        ("e = 'x' OR d = 1", {"d": "x", "e": "x"}, "T"),
        ("e = 'y' AND d = 1", {"d": "x", "e": "x"}, "F"),
        ("f < -(d = 1)", {"d": "x"}, "?"),
        ("f = -(d = 1)", {"d": "x"}, "!"),
    ],
)
def test_values(text: str, properties: dict[str, str], expected: str) -> None:
    assert verdict(text, properties) == expected


PARSE = "org.apache.rocketmq.filter.parser.ParseException: "
LEXER = "org.apache.rocketmq.filter.parser.TokenMgrError: "
RUNTIME = "java.lang.RuntimeException: "
FORMAT = "java.lang.NumberFormatException: "


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("", PARSE + 'Encountered "<EOF>"'),
        ("   ", PARSE + 'Encountered "<EOF>" at line 1, column 3.'),
        ("(a", PARSE + 'Encountered "<EOF>" at line 1, column 2.'),
        ("a = 1 AND", PARSE + 'Encountered "<EOF>" at line 1, column 9.'),
        ("a == 3", PARSE + 'Encountered " "=" "= "" at line 1, column 4.'),
        ("a=>1", PARSE + 'Encountered " ">" "> "" at line 1, column 3.'),
        ("a NOT junk", PARSE),
        ("a NOT LIKE 'x'", PARSE),
        ("a IS junk", PARSE + 'Encountered " <ID> "junk "" at line 1, column 6.'),
        ("a IN (1)", PARSE + 'Encountered " <DECIMAL_LITERAL> "1 "" at line 1, column 7.'),
        ("a IN 'x'", PARSE + 'Encountered " <STRING_LITERAL> "\\\'x\\\' "" at line 1, column 6.'),
        ("a IN ('x'", PARSE + 'Encountered "<EOF>"'),
        ("a != 3", LEXER + 'Lexical error at line 1, column 3.  Encountered: "!" (33)'),
        ("a = 1 ; b", LEXER + 'Lexical error at line 1, column 7.  Encountered: ";" (59)'),
        ("a.b = 1", LEXER),
        ("a = 'x", LEXER),
        ("a = 1 /* x", LEXER),
        ("ä = 1", LEXER + 'Lexical error at line 1, column 1.  Encountered: "\\u00e4" (228)'),
        ("a\x0b= 1", LEXER),
        ("a = 0.0", RUNTIME + "0.0 is less than 4.9E-324"),
        ("a = 1e400", RUNTIME + "1e400 is greater than 1.7976931348623157E308"),
        ("a = 9223372036854775808", FORMAT + 'For input string: "9223372036854775808"'),
        ("-9223372036854775808 = a", FORMAT),
        ("a > '3'", RUNTIME + "Value ''3'' cannot be compared."),
        ("a > TRUE", RUNTIME + "Value 'TRUE' cannot be compared."),
        ("a > NULL", RUNTIME + "Value 'NULL' cannot be compared."),
        ("a > (b = 1)", RUNTIME + "Value '(b == 1)' cannot be compared."),
        ("a > (b <> 1e10)", RUNTIME + "Value '(NOT (b == 1.0E10))' cannot be compared."),
        ("a > (b IN ('x','y'))", RUNTIME + "Value 'b IN ( x, y )' cannot be compared."),
        ("a > (NOT b AND -5 = c)", RUNTIME + "Value '((NOT b) && ((- 5) == c))' cannot"),
        ("a > (b OR c IS NULL)", RUNTIME + "Value '(b || (c == NULL))' cannot be compared."),
        ("a > (b BETWEEN 1 AND 2)", RUNTIME + "Value '((b >= 1) && (b <= 2))' cannot"),
        ("a = NULL", RUNTIME + "'NULL' cannot be compared."),
        ("NULL <> a", RUNTIME + "'NULL' cannot be compared."),
        ("TRUE = 1", RUNTIME + "'TRUE' cannot be compared with '1'"),
        ("TRUE = 'x'", RUNTIME + "'TRUE' cannot be compared with ''x''"),
        ("a BETWEEN 5 AND 1", RUNTIME + "Illegal values of between, left value(5) must less"),
        ("a BETWEEN 2 AND 1.5", RUNTIME + "Illegal values of between, left value(2) must less"),
        ("a BETWEEN NULL AND 3", RUNTIME + "Illegal values of between, values can not be null!"),
        ("a BETWEEN 1 AND TRUE", RUNTIME + "Illegal values of between, left value(1) must less"),
        ("a BETWEEN 'z' AND 'a'", RUNTIME + "Illegal values of between, left value(z) must"),
        ("a BETWEEN 'a' AND 'b'", RUNTIME + "Value ''a'' cannot be compared."),
        ("a BETWEEN 'x' AND 1", FORMAT + 'For input string: "x"'),
        ("a NOT BETWEEN NULL AND 3", RUNTIME + "Value 'NULL' cannot be compared."),
        ("1 IN ('x')", RUNTIME + "Expected a property for In expression, got: 1"),
        ("-a IN ('x')", RUNTIME + "Expected a property for In expression, got: (- a)"),
        ("1", PARSE + "Expression will not result in a boolean value: 1"),
        ("'x'", PARSE + "Expression will not result in a boolean value: 'x'"),
        ("NOT -5", PARSE + "Expression will not result in a boolean value: (- 5)"),
        ("a AND 1", PARSE + "Expression will not result in a boolean value: 1"),
        ("00 = 0", PARSE + "Expression will not result in a boolean value: 0"),
        ("(" * 300 + "a" + ")" * 300, "java.lang.StackOverflowError: "),
        ("NOT " * 300 + "a", "java.lang.StackOverflowError: "),
    ],
)
def test_invalid_selectors_are_refused(text: str, remark: str) -> None:
    for _ in range(2):  # the second time from the cache
        with pytest.raises(SelectorError) as caught:
            compile_selector(text)
        assert caught.value.remark.startswith(remark)


def test_long_chains_are_not_nested() -> None:
    text = " OR ".join(f"a = {n}" for n in range(2400))
    assert compile_selector(text).matches({"a": "2399"})
    with pytest.raises(SelectorError, match="10000 tokens"):
        compile_selector(f"{text} OR {text}")


def test_selectors_are_cached() -> None:
    assert compile_selector("a = 1") is compile_selector("a = 1")


@given(st.text("ab13.'()=<>-+ \n/*eELNOTANDRISU", max_size=30) | st.text(max_size=10))
def test_any_text_is_a_selector_or_a_selector_error(text: str) -> None:
    try:
        selector = compile_selector(text)
    except SelectorError:
        return
    selector.matches(BOTH)


@given(st.text(max_size=8) | st.floats().map(repr) | st.integers().map(str))
def test_any_text_is_a_number_or_unmatchable(text: str) -> None:
    for read in (read_int, read_long, read_double):
        try:
            read(text)
        except UnmatchableError:
            continue
