"""Chat templates in the formats of the families, laid out as transformers lays them out; and end tokens by the list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from inference.chat_template import ChatTemplate, TemplateError, pick_template
from inference.config import EngineConfig
from inference.core.process import CoreThread
from inference.executor import Executor
from inference.request import FinishReason, Request, SamplingParams
from inference.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_models import END, byte_tokenizer, generate, greedy, make_model, save
from tests.tiny_tokenizer import bpe_tokenizer

# Each in its family's layout, and with the constructs that templates of that family use.
TEMPLATES = {
    "chatml (Qwen, SmolLM2)": """
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.content is string and not message.tool_calls %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content.strip('\\n') + '<|im_end|>' + '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.tool_calls or []) | tojson(indent=1) + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
""",
    "Qwen3": """
{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.searching and message.role == 'user' %}{% set ns.last = index %}{% set ns.searching = false %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and '</think>' in message.content and loop.index0 < ns.last %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
    {%- else %}{% set content = message.content %}{% endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
""",
    "Llama 2": """
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
{%- else %}{% set rest = messages %}{% set system = '' %}{% endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate.') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}
    {%- else %}{% generation %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}
""",
    "Llama 3": """
{{- bos_token }}
{%- if tools is not none %}{{- raise_exception('No tools here.') }}{% endif %}
{%- if not date is defined and strftime_now is not defined %}{{- raise_exception('No date.') }}{% endif %}
{%- for message in messages %}
    {%- set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
    {{- head + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
""",
    "Gemma": """
{{ bos_token }}
{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}{%- continue -%}{%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' }}
    {%- if message['content'] is iterable and message['content'] is not string -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}{{ message['content'] | trim }}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
""",
}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "  Wie heißt <b>das</b>? "}],
    [
        {"role": "system", "content": 'Answer with "JSON".'},
        {"role": "user", "content": "One\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nTwo", "name": None},
        {"role": "user", "content": "Three & four"},
    ],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{"f": {"é": "<1>"}}]}],
]


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS, ids=["one turn", "three turns", "a call"])
@pytest.mark.parametrize("prompt", [False, True], ids=["as it is", "asking"])
def test_prompts_are_those_of_transformers(family: str, chat: list[dict[str, Any]], prompt: bool) -> None:
    ours = Tokenizer(
        bpe_tokenizer().backend, bpe_tokenizer().json, 640, (0,), TEMPLATES[family], bos_token="<s>", eos_token="</s>"
    )
    theirs = PreTrainedTokenizerFast(tokenizer_object=bpe_tokenizer().backend, bos_token="<s>", eos_token="</s>")
    expected = theirs.apply_chat_template(
        chat, chat_template=TEMPLATES[family], tokenize=False, add_generation_prompt=prompt
    )
    assert "x" in expected or "heißt" in expected or "Three" in expected
    assert ours.render_chat(chat, add_generation_prompt=prompt) == expected


def test_a_template_says_why_it_refuses() -> None:
    with pytest.raises(TemplateError, match=r"Roles must alternate\."):
        ChatTemplate(TEMPLATES["Llama 2"]).render([{"role": "assistant", "content": "x"}], bos_token="", eos_token="")
    with pytest.raises(TemplateError, match="refused the messages"):
        ChatTemplate("{{ messages[0].content + 1 }}").render([{"content": "x"}])


def test_of_several_templates_the_default_is_taken() -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert pick_template(named) == "d"
    assert pick_template(named[:1]) == "t"
    assert pick_template("only") == "only"
    assert pick_template(None) is None


def write_tokenizer(folder: Path, backend: Backend, **files: dict[str, Any]) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def test_end_tokens_come_from_every_file_that_names_them(tmp_path: Path) -> None:
    backend = Backend.from_str(byte_tokenizer().json)
    backend.add_special_tokens(["<end_of_turn>", "<eos>"])
    folder = write_tokenizer(
        tmp_path,
        backend,
        generation_config={"eos_token_id": [7, 9]},
        config={"eos_token_id": 9},
        tokenizer_config={"eos_token": {"content": "<eos>"}},
    )
    assert load_tokenizer(folder).eos_token_ids == (7, 9, backend.token_to_id("<eos>"), END + 1)


@pytest.mark.parametrize("setting", [None, False], ids=["unsaid", "switched off"])
def test_a_start_that_tokenizer_json_puts_in_front_is_kept(setting: bool | None, tmp_path: Path) -> None:
    """Llama 3 says so nowhere else."""
    backend = Backend.from_str(byte_tokenizer().json)
    backend.post_processor = processors.TemplateProcessing(single="<|end|> $0", special_tokens=[("<|end|>", END)])
    settings = {"bos_token": "<|end|>", **({} if setting is None else {"add_bos_token": setting})}
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, backend, tokenizer_config=settings))
    assert (tokenizer.encode("a")[0] == END) == (setting is None)
    assert tokenizer.encode("<|end|>a").count(END) == 1, "one start, whoever put it there"


def test_a_gguf_file_names_up_to_three_ends(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    tokens = ["a", "b", "ab", "<s>", "<eos>", "<eot>", "<eom>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_token_types([1, 1, 1, 3, 3, 3, 3])
    writer.add_bos_token_id(3)
    writer.add_eos_token_id(4)
    writer.add_eot_token_id(5)
    writer.add_eom_token_id(6)
    writer.add_chat_template("{{ messages[0].content }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = load_tokenizer(path)
    assert tokenizer.eos_token_ids == (4, 5, 6)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "hi"


def test_generation_ends_at_any_of_the_end_tokens(tmp_path: Path) -> None:
    """The ends are chosen so that two texts meet different ones."""
    model = make_model("llama")
    texts = [tuple(range(10, 30)), tuple(range(100, 90, -1))]
    plain = [greedy(model, text, 12) for text in texts]
    ends = [next(token for token in made[3:] if token not in other) for made, other in (plain, plain[::-1])]
    assert ends[0] != ends[1]
    folder = write_tokenizer(save(model, tmp_path), byte_tokenizer().backend, generation_config={"eos_token_id": ends})
    tokenizer = load_tokenizer(folder)
    executor = Executor(
        EngineConfig(folder, dtype="float32", num_threads=1, kv_cache_bytes=1 << 22), tokenizer, CoreThread
    )
    try:
        requests = [Request(str(i), text, SamplingParams(max_tokens=12)) for i, text in enumerate(texts)]
        results = generate(executor, *requests)
    finally:
        executor.shutdown()
    for made, end, (tokens, last) in zip(plain, ends, results, strict=True):
        assert tokens == made[: made.index(end)]
        assert last.finish_reason is FinishReason.STOP
        assert last.usage.completion_tokens == len(tokens) + 1
