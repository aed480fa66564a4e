"""Codes of languages, as names of files and columns use them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence

# ISO 639: the code of two letters, and those of three letters that mean the same.
_ISO_639 = (
    "aa:aar ab:abk ae:ave af:afr ak:aka am:amh an:arg ar:ara as:asm av:ava ay:aym az:aze ba:bak"
    " be:bel bg:bul bi:bis bm:bam bn:ben bo:bod,tib br:bre bs:bos ca:cat ce:che ch:cha co:cos"
    " cr:cre cs:ces,cze cu:chu cv:chv cy:cym,wel da:dan de:deu,ger dv:div dz:dzo ee:ewe"
    " el:ell,gre en:eng eo:epo es:spa et:est eu:eus,baq fa:fas,per ff:ful fi:fin fj:fij fo:fao"
    " fr:fra,fre fy:fry ga:gle gd:gla gl:glg gn:grn gu:guj gv:glv ha:hau he:heb hi:hin ho:hmo"
    " hr:hrv ht:hat hu:hun hy:hye,arm hz:her ia:ina id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido"
    " is:isl,ice it:ita iu:iku ja:jpn jv:jav ka:kat,geo kg:kon ki:kik kj:kua kk:kaz kl:kal"
    " km:khm kn:kan ko:kor kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir la:lat lb:ltz lg:lug li:lim"
    " ln:lin lo:lao lt:lit lu:lub lv:lav mg:mlg mh:mah mi:mri,mao mk:mkd,mac ml:mal mn:mon"
    " mr:mar ms:msa,may mt:mlt my:mya,bur na:nau nb:nob nd:nde ne:nep ng:ndo nl:nld,dut nn:nno"
    " no:nor nr:nbl nv:nav ny:nya oc:oci oj:oji om:orm or:ori os:oss pa:pan pi:pli pl:pol ps:pus"
    " pt:por qu:que rm:roh rn:run ro:ron,rum ru:rus rw:kin sa:san sc:srd sd:snd se:sme sg:sag"
    " sh:hbs si:sin sk:slk,slo sl:slv sm:smo sn:sna so:som sq:sqi,alb sr:srp ss:ssw st:sot"
    " su:sun sv:swe sw:swa ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur"
    " ts:tso tt:tat tw:twi ty:tah ug:uig uk:ukr ur:urd uz:uzb ve:ven vi:vie vo:vol wa:wln wo:wol"
    " xh:xho yi:yid yo:yor za:zha zh:zho,chi,cmn zu:zul"
)


def _codes() -> dict[str, str]:
    codes = {}
    for entry in _ISO_639.split():
        short, long = entry.split(":")
        codes.update(dict.fromkeys([short, *long.split(",")], short))
    return codes


_CODES = _codes()
_ENDINGS = (".gz", ".zst")
# BCP 47: the script or the region after a code, as of zh-Hans, en-US, pt_BR, es-419. In lower case
# a region stands after a hyphen alone: `is_ok` is the usual name of another column.
_REGION = r"[-_](?:[A-Z][a-z]{3}|[A-Z]{2}|\d{3})"
_COLUMN_WITH_REGION = re.compile(rf"([A-Za-z]{{2,3}})(?:(?:{_REGION})+|-[a-z]{{2}})")
_FILE_WITH_REGION = re.compile(rf"(?<![A-Za-z])([a-z]{{2,3}})(?:{_REGION})+(?![A-Za-z0-9])")


def language_code(name: str) -> str:
    """The code of two letters that a code of two or three letters means; empty if unknown."""
    return _CODES.get(name.strip().lower(), "")


def language_with_region(name: str) -> str:
    """The code of the language of `en-US`, `pt_BR` or `zh-Hans`; empty for any other name."""
    match = _COLUMN_WITH_REGION.fullmatch(name.strip())
    return language_code(match[1]) if match else ""


def languages_of_file(path: str, source_language: str) -> tuple[str, str] | None:
    """The languages of two columns by the name of their file; None if it does not say them.

    Two codes next to each other name them, as in `tatoeba.en-de.tsv.gz`, and one of them must be
    the source language. A name with two such pairs of codes says nothing, and a code of a region
    may be one of a language: `pt_BR-en` is Portuguese or Breton. The source language twice is what
    a name says that has no other pair.
    """
    found = set()
    twice = False
    for part in _parts(path):
        for words in {part, _without_regions(part)}:
            codes = [language_code(word) for word in re.split(r"[-_]", words)]
            for pair in itertools.pairwise(codes):
                if source_language in pair and all(pair) and pair[0] != pair[1]:
                    found.add(pair)
                twice |= pair == (source_language, source_language)
    if twice and not found:
        return source_language, source_language
    return found.pop() if len(found) == 1 else None


def unknown_code(words: Sequence[str], source_language: str) -> str:
    """The word like a code next to that of the source language, which is known for none; or ""."""
    for pair in itertools.pairwise(words):
        for own, other in (pair, pair[::-1]):
            like_code = re.fullmatch(r"\s*[A-Za-z]{2,3}\s*", other)
            if language_code(own) == source_language and like_code and not language_code(other):
                return other.strip()
    return ""


def unknown_code_of_file(path: str, source_language: str) -> str:
    """The code in the name of a file of two columns that is known for no language; or ""."""
    parts = [re.split(r"[-_]", _without_regions(part)) for part in _parts(path)]
    return next(filter(None, (unknown_code(words, source_language) for words in parts)), "")


def language_of_file(path: str) -> str:
    """The language of a file with one text a line by its name; empty if it does not say it.

    It is the last code that stands alone between dots, as in `train.de.gz`, with a region or
    without; else the last one, as in `train_de.txt`.
    """
    parts = [*map(_without_regions, _parts(path))]
    words = [word for part in parts for word in re.split(r"[-_]", part)]
    codes = [*map(language_code, [*words, *parts])]
    return next((code for code in reversed(codes) if code), "")


def _parts(path: str) -> list[str]:
    """The parts of the name of a file between dots, without endings that mean no language."""
    name = os.path.basename(path)
    for ending in _ENDINGS:
        if name.lower().endswith(ending):
            name = name[: -len(ending)]
    return name.split(".")


def _without_regions(part: str) -> str:
    """A part of a name with `en` for `en-US`: a code in lower case, a region in upper case."""
    return _FILE_WITH_REGION.sub(lambda m: m[1] if language_code(m[1]) else m[0], part)
