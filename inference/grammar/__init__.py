"""Constraints on the output, enforced by llguidance: compiled once for each text, one matcher for each request."""

from inference.grammar.compiler import GrammarCompiler
from inference.grammar.matcher import Matcher, fill_draft_masks, fill_masks

__all__ = ["GrammarCompiler", "Matcher", "fill_draft_masks", "fill_masks"]
