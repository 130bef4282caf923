import json
import math
import threading

import pytest

from pipeline.chunk import chunk
from pipeline.engine_client import Completion, EngineClient, EngineUsage, TokenLogprob
from pipeline.errors import DocumentError
from pipeline.extract import DocumentText, Grounding, extract
from pipeline.schema import ExtractionSchema
from pipeline.settings import Settings
from pipeline.tokens import EstimatedTokens
from pipeline.tracing import Trace

RECIPE = ExtractionSchema.parse(
    "recipe",
    {
        "type": "object",
        "properties": {
            "title": {"type": ["string", "null"]},
            "serves": {"type": ["integer", "null"]},
            "kind": {"enum": ["sweet", "savoury"]},
            "ingredients": {"type": "array", "items": {"type": "string", "x-note": 1}, "x-grounded": "required"},
        },
    },
)
PLACES = ExtractionSchema.parse(
    "place",
    {
        "type": "array",
        "items": {
            "type": "object",
            "x-key": ["name"],
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "x-grounded": "required"},
                "country": {"type": ["string", "null"]},
            },
        },
    },
)
TEXT = "# Flat bread\n\nServes 4\n\n- 1 egg\n- salt\n\nFor the top:\n\n- 1 egg\n\nMix and bake."


class Engine(EngineClient):
    """Answers by a function of the document's text; remembers what it was asked."""

    def __init__(self, answer) -> None:
        self.model = "fake"
        self.answer = answer
        self.asked: list[str] = []
        self.budgets: list[int] = []
        self.lock = threading.Lock()

    def chat(self, messages, *, json_schema=None, max_tokens, logprobs=False, **_):
        text = messages[-1]["content"]
        with self.lock:
            self.asked.append(text)
            self.budgets.append(max_tokens)
        answer = self.answer(text)
        if isinstance(answer, Completion):
            return answer
        return completion(json.dumps(answer, ensure_ascii=False))


def completion(text, finish_reason="stop", **options):
    tokens = tuple(TokenLogprob(character.encode(), math.log(0.5)) for character in text)
    return Completion(text, finish_reason, EngineUsage(100, 20, len(tokens), 0.5), "fake-1", tokens, **options)


def document(text, tokens=1000):
    return DocumentText(text, chunk(text, EstimatedTokens(), tokens))


def run(text, schema, answer, *, tokens=1000, **settings):
    engine = Engine(answer)
    return extract(document(text, tokens), schema, engine, Settings(**settings)), engine


def test_one_entity_with_each_value_at_its_place():
    answer = {"title": "Flat bread", "serves": 4, "kind": "savoury", "ingredients": ["1 egg", "salt", "1 egg"]}
    found, engine = run(TEXT, RECIPE, lambda text: answer)
    (entity,) = found.entities
    assert entity.data == answer
    assert [(m.path, m.status, m.start is not None and TEXT[m.start : m.end]) for m in entity.mentions] == [
        ("/title", Grounding.EXACT, "Flat bread"),
        ("/serves", Grounding.EXACT, "4"),
        ("/kind", Grounding.NONE, False),
        ("/ingredients/0", Grounding.EXACT, "1 egg"),
        ("/ingredients/1", Grounding.EXACT, "salt"),
        ("/ingredients/2", Grounding.EXACT, "1 egg"),
    ]
    starts = [mention.start for mention in entity.mentions if mention.path.startswith("/ingredients")]
    assert starts == sorted(set(starts))
    assert entity.grounded == 1.0
    assert [mention.confidence for mention in entity.mentions] == [pytest.approx(0.5)] * 6
    assert {mention.chunk_ordinal for mention in entity.mentions} == {0, None}
    (call,) = found.runs
    assert (call.model, call.usage, call.finish_reason) == (
        "fake-1",
        EngineUsage(100, 20, len(json.dumps(answer)), 0.5),
        "stop",
    )
    assert call.logprob == pytest.approx(math.log(0.5))
    assert "Mix and bake." in engine.asked[0]
    assert found.notes == []


def test_items_without_a_source_and_items_said_again_are_left_out_with_a_note():
    answer = {"title": None, "serves": None, "kind": None, "ingredients": ["salt", "pepper", "salt", "1 egg", "salt"]}
    found, _ = run(TEXT, RECIPE, lambda text: answer)
    (entity,) = found.entities
    assert entity.data["ingredients"] == ["salt", "1 egg"]
    assert [mention.path for mention in entity.mentions] == ["/ingredients/0", "/ingredients/1"]
    assert found.left_out == 1
    assert [note.split("left out: ")[1] for note in found.notes] == [
        "it is not in the text", "it repeats an item of the list", "it repeats an item of the list",
    ]  # fmt: skip


def test_a_document_that_says_nothing_gives_no_entity_but_a_reason():
    found, _ = run(TEXT, RECIPE, lambda text: {"title": None, "serves": None, "kind": None, "ingredients": []})
    assert (found.entities, found.notes) == ([], ["the document states none of the schema's fields"])


def test_an_array_is_read_in_windows_and_the_same_key_is_one_entity():
    text = "\n\n".join(f"In Rome and City{n} it rained for days and days on end." for n in range(12))

    def answer(asked):
        places = [word.strip(".") for word in asked.split() if word.startswith(("Rome", "City"))]
        return [{"name": place, "country": None} for place in places]

    found, engine = run(text, PLACES, answer, tokens=40, context_tokens=64)
    assert len(engine.asked) > 3
    assert len(found.runs) == len(engine.asked)
    names = [entity.data["name"] for entity in found.entities]
    assert names == ["Rome", *(f"City{n}" for n in range(12))]
    rome = found.entities[0]
    assert rome.key == "rome"
    assert [text[mention.start : mention.end] for mention in rome.mentions] == ["Rome"] * 12
    assert len({mention.start for mention in rome.mentions}) == 12
    for entity in found.entities[1:]:
        (mention,) = entity.mentions
        assert (
            found.runs[mention.run].chunk_ordinals[0]
            <= mention.chunk_ordinal
            <= found.runs[mention.run].chunk_ordinals[-1]
        )


def test_an_answer_cut_short_is_asked_again_in_halves_and_never_repaired():
    text = "\n\n".join(f"Item: thing{n} is described here in a line of its own." for n in range(16))

    def answer(asked):
        things = [word for word in asked.split() if word.startswith("thing")]
        if len(things) > 4:
            return completion('{"title": null, "ingredients": ["thing0", "th', "length")
        return {"title": "Things", "serves": None, "kind": None, "ingredients": things}

    found, _ = run(text, RECIPE, answer, tokens=60)
    (entity,) = found.entities
    assert entity.data["ingredients"] == [f"thing{n}" for n in range(16)]
    assert entity.data["title"] == "Things"
    assert {call.finish_reason for call in found.runs} == {"length", "stop"}
    assert {found.runs[mention.run].finish_reason for mention in entity.mentions} == {"stop"}
    for mention in entity.mentions:
        if mention.start is not None:
            assert text[mention.start : mention.end] == mention.value


def test_an_answer_that_never_fits_ends_in_words():
    with pytest.raises(DocumentError) as caught:
        run(TEXT * 20, RECIPE, lambda text: completion("{", "length"))
    assert caught.value.reason == "truncated"
    assert "QUARRY_MAX_OUTPUT_TOKENS" in caught.value.detail


def test_a_refusal_gives_nothing_and_its_reason():
    found, _ = run(TEXT, RECIPE, lambda text: completion("", refusal="I can't do that"))
    assert (found.entities, found.notes) == ([], ["the model refused: I can't do that"])


@pytest.mark.parametrize("text", ["Sure! Here is the JSON", '{"title": NaN}', '{"title": "x"', "[]"])
def test_an_unusable_answer_is_the_documents_error(text):
    with pytest.raises(DocumentError) as caught:
        run(TEXT, RECIPE, lambda _: completion(text))
    assert caught.value.reason == "bad_answer"


def test_bad_entities_of_an_array_are_left_out_and_the_rest_stays():
    answer = [{"name": None, "country": "x"}, {"name": "Flat", "country": "nowhere"}, "Rome", {"name": "Atlantis"}]
    found, _ = run(TEXT, PLACES, lambda text: answer)
    assert [entity.data for entity in found.entities] == [{"name": "Flat", "country": "nowhere"}]
    assert found.entities[0].grounded == 0.5
    assert len(found.notes) == 4
    assert found.notes[-1] == "entity 3 left out: name has no source in the text"


def test_the_answer_has_no_more_room_than_the_text_gives_it():
    _, engine = run(TEXT, RECIPE, lambda text: {"title": "Flat bread", "ingredients": []}, max_output_tokens=1024)
    assert 100 < engine.budgets[0] < 300
    _, engine = run(TEXT, RECIPE, lambda text: {"title": "Flat bread", "ingredients": []}, max_output_tokens=50)
    assert engine.budgets == [50]


def test_each_step_has_its_span_with_usage():
    trace = Trace(Settings())
    with trace.span("extract"):
        engine = Engine(lambda text: {"title": "Flat bread", "ingredients": []})
        extract(document(TEXT), RECIPE, engine, Settings(), None, trace)
    spans = {span.name: span for span in trace.take()}
    assert set(spans) == {"retrieve", "generation", "ground", "extract"}
    assert {span.parent_id for name, span in spans.items() if name != "extract"} == {spans["extract"].id}
    generation = spans["generation"]
    assert (generation.model, generation.input_tokens, generation.cached_tokens) == ("fake-1", 100, 20)
    assert generation.device_seconds == 0.5


def test_windows_of_a_document_nest_their_spans_under_the_caller():
    trace = Trace(Settings())
    text = "\n\n".join(f"In City{n} it rained for days and days on end, said everyone." for n in range(12))
    with trace.span("extract"):
        extract(document(text, 40), PLACES, Engine(lambda text: []), Settings(context_tokens=64), None, trace)
    spans = trace.take()
    outer = next(span.id for span in spans if span.name == "extract")
    parents = {span.parent_id for span in spans if span.name == "generation"}
    assert parents == {outer}
