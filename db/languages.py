"""Which of PostgreSQL's text search configurations fits a language."""

from __future__ import annotations

SIMPLE = "simple"  # no stemming and no stop words: right for every language, best for none

_CONFIGS = {
    "ar": "arabic",
    "ca": "catalan",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "eu": "basque",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "ne": "nepali",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
    "yi": "yiddish",
}


def text_config(language: str | None) -> str:
    """The configuration for a language tag ("de", "pt-BR"); `simple` where PostgreSQL brings none."""
    if not language:
        return SIMPLE
    return _CONFIGS.get(language.replace("_", "-").split("-")[0].lower(), SIMPLE)
