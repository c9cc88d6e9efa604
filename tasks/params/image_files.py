"""The images of a folder of class folders, or of a tar of such: which there are, their classes and their order.

Looks at names only, and imports nothing heavy: params.yaml is checked with it.
"""

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tasks.params.source_digest import walk_files

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_MAX_CLASS_NAME = 100


@dataclass(frozen=True)
class ImageFile:
    """One image of the source."""

    name: str
    """Its path below the source, with slashes."""
    size: int
    """Bytes."""
    offset: int | None
    """Where in the tar it begins; None in a folder."""

    @property
    def label(self) -> str:
        """The class: the folder that the image is directly in."""
        return PurePosixPath(self.name).parent.name


def list_image_files(source: Path) -> list[ImageFile]:
    """Return the images in the order of the rows: a function of their names alone.

    What stands above the class folders, such as train/ and val/, comes one after another by name. Within it images are
    in the order of their names' sha256, so that every range has images of all classes.

    Raises ValueError if an image is in no class folder, there are fewer than two classes, or the tar is none.
    """
    found = list(_list_tar(source) if source.is_file() else _list_folder(source))
    # A name that stands twice in a tar is the later file, as it is when the tar is unpacked.
    files = list({file.name: file for file in found if _is_image(file.name)}.values())
    if not files:
        raise ValueError(f"no images in it; allowed: CLASS/NAME with one of {', '.join(SUFFIXES)}")
    for file in files:
        if not 1 <= len(file.label) <= _MAX_CLASS_NAME or not file.name.isprintable():
            raise ValueError(
                f"{file.name[-80:]!r} is in no class folder; allowed: CLASS/NAME, printable, a class of at most "
                f"{_MAX_CLASS_NAME} characters"
            )
    labels = {file.label for file in files}
    if len(labels) < 2:
        raise ValueError(
            f"all images are of one class, {labels.pop()!r}; allowed: a folder for each of several classes"
        )
    return sorted(
        files,
        key=lambda file: (
            PurePosixPath(file.name).parent.parent.as_posix(),
            hashlib.sha256(file.name.encode()).digest(),
        ),
    )


def _list_folder(source: Path) -> Iterator[ImageFile]:
    for path in walk_files(source):
        yield ImageFile(path.relative_to(source).as_posix(), path.stat().st_size, None)


def _list_tar(source: Path) -> Iterator[ImageFile]:
    """Yield the plain files; nothing is unpacked to a disk, so links and devices have no meaning."""
    try:
        # "r:": a compressed one could be a bomb, and images are compressed already.
        with tarfile.open(source, "r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse():
                    name = PurePosixPath(member.name).as_posix().lstrip("/")
                    yield ImageFile(name, member.size, member.offset_data)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise ValueError(f"no readable tar ({error}); allowed: an uncompressed .tar") from None


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
