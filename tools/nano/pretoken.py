"""The two patterns that cut text into pieces before byte pairs are merged, as standard regular expressions.

The `re` module has no \\p{L}; the classes are spelled out from the Unicode data that Python carries.
"""
import re
import sys
import unicodedata

SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
HAN = ((0x2E80, 0x2E99), (0x2E9B, 0x2EF3), (0x2F00, 0x2FD5), (0x3005, 0x3005), (0x3007, 0x3007), (0x3021, 0x3029),
       (0x3038, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFA6D), (0xFA70, 0xFAD9), (0x20000, 0x323AF))
CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"


def is_han(code):
    return any(low <= code <= high for low, high in HAN)


def ranges(member):
    """The members among all code points, as the inside of a character class."""
    out, start = [], None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and member(code)
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            out.append(f"\\U{start:08x}-\\U{code - 1:08x}")
            start = None
    return "".join(out)


def categories(*wanted, without_han=False):
    return ranges(lambda code: unicodedata.category(chr(code)).startswith(wanted)
                  and not (without_han and is_han(code)))


def plain():
    """Letters of any case, single digits, contractions by themselves (tokenizer.json)."""
    letter, digit = categories("L"), categories("N")
    return re.compile("|".join([
        f"(?i:{CONTRACTIONS})", f"[^\r\n{letter}{digit}]?[{letter}]+", f"[{digit}]",
        f" ?[^{SPACE}{letter}{digit}]+[\r\n]*", f"[{SPACE}]*[\r\n]+", f"[{SPACE}]+(?![^{SPACE}])", f"[{SPACE}]+"]))


def cased():
    """Han runs, words with a change of case, up to three digits (rank files)."""
    letter, digit = categories("L"), categories("N")
    upper = categories("Lu", "Lt", "Lm", "Lo", "M", without_han=True)
    lower = categories("Ll", "Lm", "Lo", "M", without_han=True)
    han = ranges(is_han)
    lead, tail = f"[^\r\n{letter}{digit}]?", f"(?i:{CONTRACTIONS})?"
    return re.compile("|".join([
        f"[{han}]+", f"{lead}[{upper}]*[{lower}]+{tail}", f"{lead}[{upper}]+[{lower}]*{tail}", f"[{digit}]{{1,3}}",
        f" ?[^{SPACE}{letter}{digit}]+[\r\n]*", f"[{SPACE}]*[\r\n]+", f"[{SPACE}]+(?![^{SPACE}])", f"[{SPACE}]+"]))
