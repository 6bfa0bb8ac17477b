"""Words that the finding labeler knows: negation, doubt, clause ends, sides, sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def _phrases(text: str) -> tuple[tuple[str, ...], ...]:
    """Phrases from a list with bars between them, longest first."""
    return tuple(sorted((tuple(p.split()) for p in text.split("|")), key=len, reverse=True))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NO_CUE: Final = _phrases(
    "no change|no interval change|no significant change|no significant interval change|"
    "no increase|no interval increase|no decrease|no interval decrease|without change|not only|"
    "not changed|not significantly changed|not increased|not decreased|no doubt|without doubt"
)
"""Look like negations and are none."""
MAYBE_BEFORE: Final = _phrases(
    "possible|possibly|probable|probably|likely|may|might|could|perhaps|suspected|suspected for|"
    "suspicious for|suspicion of|suspicion for|questionable|question of|equivocal|concern for|"
    "concerning for|cannot exclude|can not exclude|cannot rule out|can not rule out|"
    "not exclude|not rule out|versus|vs"
)
"""Weaken what follows in the clause."""
MAYBE_AFTER: Final = _phrases(
    "possible|probable|likely|suspected|questionable|equivocal|not excluded|not ruled out|"
    "cannot be excluded|can not be excluded|cannot be ruled out|can not be ruled out|"
    "not be excluded|not be ruled out|uncertain"
)
"""Weaken what they are said of."""
NOT_BEFORE: Final = _phrases(
    "no|not|without|without evidence of|no evidence of|no sign of|no signs of|negative for|free of|"
    "absence of|absent|clear of|neither|nor|never|none|rule out|ruled out|excludes|denies|"
    "resolution of|resolved|lack of|lacks|rather than|instead of"
)
"""Negate what follows in the clause."""
NOT_AFTER: Final = _phrases(
    "not|not seen|not present|not identified|not visible|not visualized|not visualised|"
    "not evident|not detected|not demonstrated|not appreciated|no longer|absent|excluded|"
    "ruled out|resolved|unlikely|has cleared|have cleared|negative|none|neither"
)
"""Negate what they are said of."""
LIMITS: Final = _words(
    "new large larger significant sizable sizeable other further additional definite gross"
)
"""``no large effusion`` claims no effusion, and contradicts no small one."""
BREAKS: Final = _words(
    "but however although though except apart aside while whereas yet which despite"
)
"""Begin a new clause."""
STARTS: Final = _words("there a an")
"""Begin a new clause behind a joining word: ``no effusion, a left pneumothorax``."""
JOINS: Final = frozenset(("and", "or", ","))
SIDES: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("left", "leftsided", "lingula", "lingular"), frozenset(("left",))),
    **dict.fromkeys(("right", "rightsided"), frozenset(("right",))),
    **dict.fromkeys(
        ("bilateral", "bilaterally", "both", "bibasilar", "bibasal", "biapical"),
        frozenset(("left", "right")),
    ),
}
"""Word -> the sides that it names."""
SILENT: Final = _words(
    "indication history technique comparison procedure exam examination reason clinical"
)
"""Sections that say nothing of the images."""
SECTIONS: Final = SILENT | frozenset(("findings", "impression", "conclusion", "report"))
COPULAS: Final = _words(
    "is are was were be been has have had being appears appear seems seem remains"
)
"""Tie a state to what it is said of."""
VERDICTS: Final = COPULAS | frozenset(("present", "seen", "noted", "visible", "identified"))
DENIALS: Final = frozenset(("no", "not", "nor", "without"))
DIVIDERS: Final = frozenset((",", "and", "or", "but"))
"""Part the phrases within which a side word belongs to a finding."""
