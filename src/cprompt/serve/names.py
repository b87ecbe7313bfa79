"""File names and class names that a client sends: what is shown, and what is accepted."""

from __future__ import annotations

from cprompt.classifier.photo_sources import class_name
from cprompt.errors import DataError
from cprompt.serve.config import Limits
from cprompt.serve.errors import RequestError

NAMELESS = "the image"
"""What an image without a file name is called in answers and messages."""

_MAX_SHOWN = 200
_TEXT_DIRECTION = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")


def printable(name: str) -> str:
    """A client's name for messages: control characters replaced, cut at 200 characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name)[:_MAX_SHOWN]


def shown_name(name: str | None) -> str:
    """A client's file name for messages: printable, and without its folders."""
    return printable((name or "").replace("\\", "/").rsplit("/", 1)[-1]) or NAMELESS


def clean_label(label: str, limits: Limits, file: str | None = None) -> str:
    """A class name in one spelling (NFC, no outer spaces); a RequestError if it is not allowed.

    `file` is the zip entry that the name comes from, for the error.
    """

    def refuse(message: str, rule: str) -> RequestError:
        return RequestError(422, "bad_label", message, file=file, rule=rule)

    if len(label) > limits.max_label:
        rule = f"at most {limits.max_label} characters"
        raise refuse(f"the class name {label[: limits.max_label]!a}… is too long", rule)
    if any(sign in _TEXT_DIRECTION for sign in label):
        rule = "no characters that change the direction of text"
        raise refuse(f"the class name {label!a} would be displayed as another name", rule)
    try:
        return class_name(label.strip(), file or "label")
    except DataError as error:
        rule = "a name of printable characters, other than the reserved one"
        raise refuse(error.message, rule) from error


def check_unicode(label: str) -> None:
    """Raise a RequestError if a class name has lone surrogates, which no answer could repeat.

    JSON can escape half of a character ("\\ud800"), but UTF-8 cannot encode it. This is all that is
    asked of the name of a class that is already in the model: other limits may have been in force
    when it was learnt.
    """
    try:
        label.encode()
    except UnicodeEncodeError:
        raise RequestError(
            422,
            "bad_label",
            f"the class name {printable(label)!r} has an undecodable character",
            rule="valid Unicode, without lone surrogates",
        ) from None
