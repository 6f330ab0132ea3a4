"""Take secrets out of text and settings, for a bundle that leaves the house. Pure.

Three nets, as one may miss: settings by their name, values that are known to be secret wherever they stand, and
whatever has the form of a secret.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HIDDEN", "Redactor", "secrets_in_environment", "secrets_in_file"]

HIDDEN: Final = "[hidden]"

_SECRET_NAME: Final = re.compile(r"(?i)password|passwd|secret|token|seed|credential|private|^user$")
_SECRET_VARIABLE: Final = re.compile(r"(?i)PASS|SECRET|TOKEN|KEY|CRED|SEED")
_FILE_VARIABLE: Final = re.compile("_(FILE|PATH|DIR)$|^NATS_(CREDS|NKEY|KEY)$")
_LENGTH_MIN: Final = 4  # hiding each "a" would leave nothing to read
_VARIABLE_LENGTH_MIN: Final = 8  # no variable that is named like a secret and says "true" or a number
_WORD_LENGTH_MIN: Final = 16
_FORMS: Final = (
    (re.compile(r"(?<=://)[^\s/\"']+@"), f"{HIDDEN}@"),
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----", re.DOTALL), HIDDEN),
    (re.compile(r"\bS[A-Z][A-Z2-7]{54,60}\b"), HIDDEN),  # seeds of nkeys
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), HIDDEN),  # JWTs
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),  # ids of keys of AWS
    (re.compile(r"(?i)(authorization\s*[:=]\s*)[^\r\n\"']+"), rf"\1{HIDDEN}"),  # of HTTP: a scheme, then a secret
    (re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"(?i)((?:password|passwd|passphrase|pwd|secret\w*|token|authorization|api_?key|accountkey|signature)"
            r"\\*[\"']?\s*[:=]\s*)"
            # in quotes; in quotes of a JSON text within another one; a word
            r"(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\\+[\"'].*?\\+[\"']|[^\s,}]+)"
        ),
        rf"\1{HIDDEN}",
    ),
)


def secrets_in_environment(environment: Mapping[str, str]) -> list[str]:
    """Values of variables that are named like secrets, without those that name a file."""
    return [
        value
        for name, value in environment.items()
        if _SECRET_VARIABLE.search(name) and not _FILE_VARIABLE.search(name) and len(value) >= _VARIABLE_LENGTH_MIN
    ]


def secrets_in_file(text: str) -> list[str]:
    """The long words of a file that holds a secret: a seed, a key, credentials, or profiles of AWS."""
    words = (word for line in text.splitlines() for word in re.split(r"[\s=]+", line))
    return [word for word in words if len(word) >= _WORD_LENGTH_MIN and not word.startswith("aws_")]


class Redactor:
    """Hides known secrets, and what looks like one.

    Args:
        secrets: Known ones; also hidden where they are part of a URL or of JSON.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {
            form
            for secret in secrets
            for same in (secret, unquote(secret))
            for form in (same, quote(same, safe=""), json.dumps(same)[1:-1], json.dumps(same, ensure_ascii=False)[1:-1])
        }
        ordered = sorted((each for each in known if len(each) >= _LENGTH_MIN), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """A text without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for form, instead in _FORMS:
            text = form.sub(instead, text)
        return text

    def plain(self, value: Any) -> Any:
        """A JSON value without secrets, and without what stands under a name of one."""
        if isinstance(value, dict):
            return {self.text(str(name)): self._under(str(name), inner) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def _under(self, name: str, value: Any) -> Any:
        is_hidden = bool(value) and not isinstance(value, dict) and _SECRET_NAME.search(name)
        return HIDDEN if is_hidden else self.plain(value)
