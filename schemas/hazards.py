"""What a denied phrase or pattern is about: the twelve hazards of MLCommons' AILuminate benchmark, version 1.0.

The names are its categories', written as identifiers. Here alone they are listed: tenants' files, verdicts and
documents take them from here.
"""

from enum import StrEnum


class Hazard(StrEnum):
    """Physical hazards first, then those that are not, then those that hang on who asks."""

    VIOLENT_CRIMES = "violent_crimes"
    SEX_RELATED_CRIMES = "sex_related_crimes"
    CHILD_SEXUAL_EXPLOITATION = "child_sexual_exploitation"
    SUICIDE_AND_SELF_HARM = "suicide_and_self_harm"
    INDISCRIMINATE_WEAPONS = "indiscriminate_weapons"
    NON_VIOLENT_CRIMES = "non_violent_crimes"
    INTELLECTUAL_PROPERTY = "intellectual_property"
    DEFAMATION = "defamation"
    HATE = "hate"
    PRIVACY = "privacy"
    SPECIALIZED_ADVICE = "specialized_advice"
    SEXUAL_CONTENT = "sexual_content"
