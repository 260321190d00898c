"""The text that the built-in twins are trained on: named versions of Debian packages, and a file of Shakespeare.

Each source becomes one UTF-8 file, so that a study holds out the last tenth of each. Nothing is downloaded: what is
missing is named, with the command that fetches it.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

KIB = 1024
HAN = re.compile(r"[\u4e00-\u9fff]")
COLOUR = re.compile(r"\x1b\[\d*m")
BLOCKS = {"p", "div", "pre", "li", "dt", "dd", "tr", "h1", "h2", "h3", "h4"}
UNSHOWN = {"script", "style", "head"}

Files = dict[str, bytes]


@dataclass(frozen=True)
class Source:
    """A file that text is taken from.

    Attributes:
        file: Its name.
        sha256: Its checksum.
        package: Debian package and version, as `apt-get download` takes it; "" for a plain file.
        title: What it is.
        licence: Under which its text may be used.
    """

    file: str
    sha256: str
    package: str
    title: str
    licence: str


SOURCES = {
    "shakespeare": Source(
        "tinyshakespeare.txt", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", "",
        "plays of William Shakespeare, as collected in karpathy/char-rnn", "public domain",
    ),
    "handbook": Source(
        "debian-handbook_11.20220922_all.deb", "3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa",
        "debian-handbook=11.20220922", "The Debian Administrator's Handbook, Raphaël Hertzog and Roland Mas, with its "
        "translations", "CC-BY-SA-3.0 (or GPL-2.0+)",
    ),
    "help": Source(
        "libreoffice-help-zh-cn_4%3a7.4.7-1+deb12u14_all.deb",
        "db867cdece4c2f9c7eebe65e519c6cf386fdcf49d6e061db3dffec893b3e1dee",
        "libreoffice-help-zh-cn=4:7.4.7-1+deb12u14", "help of LibreOffice in Chinese, LibreOffice contributors",
        "MPL-2.0",
    ),
    "poems": Source(
        "fortunes-zh_2.98_all.deb", "211c5ddee59d0ae74ce01cbfd02f7c8714740bae1835d5661eb2254edd739105",
        "fortunes-zh=2.98", "300 poems of the Tang and 100 of the Song dynasty",
        "public domain (the poems; the package that collects them is GPL-3.0+)",
    ),
    "cldr": Source(
        "unicode-cldr-core_41-0.1_all.deb", "35d30d5d3bee4d8244e95236259c4c2a0db06e21bad696515751fcfeee4d0260",
        "unicode-cldr-core=41-0.1", "names of emoji in five languages, Unicode CLDR 41", "Unicode-DFS-2016",
    ),
    "python": Source(
        "libpython3.11-stdlib_3.11.2-6+deb12u9_amd64.deb",
        "10f13e000ee757f5f2d2d3569f9e30546214a0c850acd78695feae373bfa3e53",
        "libpython3.11-stdlib=3.11.2-6+deb12u9", "modules of Python's standard library", "PSF-2.0",
    ),
}  # fmt: skip

HANDBOOK = "./usr/share/doc/debian-handbook/html/{}/*.html"


@dataclass(frozen=True)
class Part:
    """A file of the corpus.

    Attributes:
        language: What is measured on its held-out tenth.
        source: Key of `SOURCES`.
        limit: The most KiB of it.
        lines: Finds its lines in the file of the source.
    """

    language: str
    source: str
    limit: int
    lines: Callable[[Path], Iterable[str]]


def build(sources: Path, out: Path) -> dict[str, Path]:
    """Write every part of the corpus.

    Args:
        sources: Folder of the files of `SOURCES`.
        out: Folder for the parts.

    Returns:
        Where each part is.

    Raises:
        SystemExit: A source is missing or is another version.
    """
    for source in SOURCES.values():
        check(source, sources)
    out.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, part in PARTS.items():
        written[name] = out / f"{name}.txt"
        lines = part.lines(sources / SOURCES[part.source].file)
        content = "".join(up_to(part.limit * KIB, lines)).encode()
        written[name].write_bytes(content)
        print(f"{name:16} {len(content):>9,} bytes  sha256 {hashlib.sha256(content).hexdigest()}")
    return written


def check(source: Source, folder: Path) -> None:
    path = folder / source.file
    if not path.is_file():
        how = f"apt-get download {source.package}, or snapshot.debian.org" if source.package else "see the README there"
        raise SystemExit(f"{path} is missing ({source.title}); get it with: {how}")
    came = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f"{source.file}  sha256 {came}")
    if came != source.sha256:
        raise SystemExit(f"{path} is another version: expected sha256 {source.sha256}")


def up_to(limit: int, lines: Iterable[str]) -> Iterator[str]:
    """Lines, until so many bytes are reached."""
    size = 0
    for line in lines:
        size += len(line.encode()) + 1
        if size > limit:
            return
        yield line + "\n"


def members(package: Path, pattern: str) -> Files:
    """Files of a Debian package, by name."""
    done = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        found = sorted(one.name for one in archive.getmembers() if one.isfile() and fnmatch(one.name, pattern))
        return {name: opened.read() for name in found if (opened := archive.extractfile(name)) is not None}


class Page(HTMLParser):
    """Collects the text of an HTML page, a line a block."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.unshown = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Blocks begin lines; what is not shown is no text."""
        self.unshown += tag in UNSHOWN
        if tag in BLOCKS:
            self.text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """Blocks end lines."""
        self.unshown -= tag in UNSHOWN
        if tag in BLOCKS:
            self.text.append("\n")

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        if not self.unshown:
            self.text.append(data)


def pages(package: Path, pattern: str, *, without: frozenset[str] = frozenset()) -> Iterator[str]:
    """The lines of HTML pages, each once: what stands on every page is no text. Short ones are titles and menus."""
    seen = set(without)
    for content in members(package, pattern).values():
        page = Page()
        page.feed(content.decode())
        for raw in "".join(page.text).split("\n"):
            line = " ".join(raw.split())
            if line and line not in seen:
                seen.add(line)
                yield line


def handbook(language: str, package: Path) -> Iterator[str]:
    """What the handbook has in a language: lines of its translation that are not still English."""
    english = frozenset() if language == "en-US" else frozenset(pages(package, HANDBOOK.format("en-US")))
    wanted = chinese if language.startswith("zh") else any
    yield from (line for line in pages(package, HANDBOOK.format(language), without=english) if wanted(line))


def chinese(line: str) -> bool:
    """Whether a third of a line's bytes are Chinese."""
    return len(HAN.findall(line)) * 9 >= len(line.encode())


def office(package: Path) -> Iterator[str]:
    yield from filter(chinese, pages(package, "./usr/share/libreoffice/help/zh-CN/text/*.html"))


def poems(package: Path) -> Iterator[str]:
    for content in members(package, "./usr/share/games/fortunes/*0").values():
        text = COLOUR.sub("", content.decode())
        yield from (line.strip() for line in text.split("\n") if HAN.search(line))


def emoji(package: Path) -> Iterator[str]:
    """Lines such as "🗼 东京塔", language after language for each emoji."""
    names: dict[str, list[str]] = {}
    for language in ("en", "zh", "fr", "ru", "ja"):
        (content,) = members(package, f"./usr/share/unicode/cldr/common/annotations/{language}.xml").values()
        for one in ET.fromstring(content).iter("annotation"):
            if one.get("type") == "tts" and one.get("cp", " ") >= "\U0001f300":
                names.setdefault(one.get("cp", ""), []).append(one.text or "")
    for sign, called in sorted(names.items()):
        yield from (f"{sign} {name}" for name in called)


def modules(package: Path) -> Iterator[str]:
    for name, content in members(package, "./usr/lib/python3.11/*.py").items():
        if name.count("/") == 4:  # the top level alone
            yield from content.decode().rstrip().split("\n")


def plain(file: Path) -> Iterator[str]:
    yield from file.read_text("utf-8").split("\n")


PARTS = {
    "english-plays": Part("English", "shakespeare", 1100, plain),
    "english-handbook": Part("English", "handbook", 700, partial(handbook, "en-US")),
    "chinese-handbook": Part("Chinese", "handbook", 700, partial(handbook, "zh-CN")),
    "chinese-help": Part("Chinese", "help", 1100, office),
    "chinese-poems": Part("Chinese", "poems", 200, poems),
    "python": Part("Python", "python", 600, modules),
    "french": Part("French", "handbook", 160, partial(handbook, "fr-FR")),
    "german": Part("German", "handbook", 160, partial(handbook, "de-DE")),
    "spanish": Part("Spanish", "handbook", 160, partial(handbook, "es-ES")),
    "russian": Part("Russian", "handbook", 200, partial(handbook, "ru-RU")),
    "japanese": Part("Japanese", "handbook", 200, partial(handbook, "ja-JP")),
    "arabic": Part("Arabic", "handbook", 120, partial(handbook, "ar-MA")),
    "emoji": Part("emoji", "cldr", 200, emoji),
}
