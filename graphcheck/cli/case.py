"""A case given on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from graphcheck.errors import MalformedFile, UsageError

if TYPE_CHECKING:
    from graphcheck.cases import Case


def read_case(option: str, text: str) -> Case:
    """The case in ``text``: JSON, or @FILE.

    Raises:
        UsageError: it is no case; names the option.
    """
    from graphcheck.cases import Case

    try:
        source = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
        return Case.from_json(json.loads(source))
    except OSError as error:
        raise UsageError(f"{option} {text}: {error.strerror}; give a file that holds one case") from error
    except ValueError as error:
        raise UsageError(f"{option} is no JSON ({error}); give one case, or @FILE") from error
    except MalformedFile as error:
        raise UsageError(f"{option}: {error}") from error
