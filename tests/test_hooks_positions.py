"""Positions other than the boundary: by causality, each must equal the boundary of the prompt cut there."""

from __future__ import annotations

import pytest
import torch

from precollapse import Extractor
from precollapse.errors import RequestError
from precollapse.perf.small_models import small_model, small_tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
PROMPTS = ["Q: 1+1? Answer: 3. No. Answer: B now", "Answer: A", "A longer question, then Answer: C and more words"]


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return Extractor(small_model("mistral"), small_tokenizer(chat_template=TEMPLATE), share_prefix="never")


def cut(extractor: Extractor, text: str) -> torch.Tensor:
    return extractor.capture(text).resid_post[0]


def test_an_anchor_is_read_at_the_end_of_its_last_occurrence(extractor):
    got = extractor.capture(PROMPTS, positions="Answer:")
    assert got.resid_post.shape == (3, 1, 2, 32)
    for i, text in enumerate(PROMPTS):
        end = text.rindex("Answer:") + len("Answer:")
        torch.testing.assert_close(got.resid_post[i, 0], cut(extractor, text[:end]), rtol=1e-4, atol=1e-5)
        assert got.positions[i] == (end - 1,)


def test_several_places_keep_their_order_and_the_boundary_its_statistics(extractor):
    plain = extractor.capture(PROMPTS, sites=("resid_post", "final_norm", "z"), options=("A", "B"), attention="rows")
    got = extractor.capture(
        PROMPTS,
        sites=("resid_post", "final_norm", "z"),
        options=("A", "B"),
        attention="rows",
        positions=("boundary", "Answer:", (0, 4)),
    )
    assert got.resid_post.shape == (3, 3, 2, 32)
    assert got.final_norm.shape == (3, 3, 32)
    assert got.z.shape == (3, 3, *plain.z.shape[1:])
    for site in ("resid_post", "final_norm", "z"):
        torch.testing.assert_close(got[site][:, 0], plain[site], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.resid_post[0, 2], cut(extractor, PROMPTS[0][:4]), rtol=1e-4, atol=1e-5)
    for name in ("entropy_bits", "logsumexp", "option_logprobs", "top_ids"):
        assert getattr(got, name).tolist() == getattr(plain, name).tolist()
    assert all(torch.equal(a, b) for a, b in zip(got.attention_rows, plain.attention_rows, strict=True))
    assert plain.positions is None


def test_each_prompt_may_name_its_own_places(extractor):
    got = extractor.capture(PROMPTS, positions=[("Answer:", (0, 1)), ("A", (2, 3)), ("then", (0, 8))])
    ends = [(PROMPTS[0].rindex("Answer:") + 7, 1), (9, 3), (PROMPTS[2].index("then") + 4, 8)]
    for i, own in enumerate(ends):
        assert got.positions[i] == tuple(e - 1 for e in own)
        for p, end in enumerate(own):
            torch.testing.assert_close(got.resid_post[i, p], cut(extractor, PROMPTS[i][:end]), rtol=1e-4, atol=1e-5)


def test_chat_prompts_take_anchors_of_the_template_and_spans_of_the_content(extractor):
    chat = [[{"role": "user", "content": text}] for text in PROMPTS]
    got = extractor.capture(chat, positions=("[assistant", (0, 6)))
    for i, text in enumerate(PROMPTS):
        whole = f"[user]{text};[assistant]"
        assert got.positions[i] == (len(whole) - 2, len("[user]") + 5)


STRIPPING = TEMPLATE.replace("m['content']", "m['content'].strip()")
TRAILING = TEMPLATE.replace("m['content']", "m['content'].rstrip()")


@pytest.mark.parametrize("template", [TEMPLATE, TRAILING, STRIPPING])
@pytest.mark.parametrize("content", ["ask", " ask me ", "ask\n"])
def test_a_span_covers_the_message_and_nothing_of_the_template(template, content):
    ex = Extractor(small_model("llama"), small_tokenizer(chat_template=template), check=False)
    chat = [{"role": "user", "content": content}]
    [rendered] = ex.render([chat])
    text, start = rendered.text, len("[user]")
    end = text.index(";[assistant]")
    assert ex.renderer.columns(rendered, 0, len(content)) == list(range(start, end))
    word = content.index("ask")
    assert [text[c] for c in ex.renderer.columns(rendered, word, word + 3)] == list("ask")
    for stop in (len(content) + 1, len(text)):
        with pytest.raises(RequestError, match=f"outside the prompt of {len(content)} characters"):
            ex.capture([chat], positions=[(0, stop)])
    if content.endswith((" ", "\n")) and template != TEMPLATE:
        with pytest.raises(RequestError, match="only blanks that the chat template removed"):
            ex.capture([chat], positions=[(len(content) - 1, len(content))])


def test_places_inside_a_shared_head_are_right_and_limit_what_is_shared():
    shared = Extractor(small_model("llama"), small_tokenizer(), share_prefix="always", check=False)
    plain = Extractor(small_model("llama"), small_tokenizer(), share_prefix="never", check=False)
    prompts = ["Solve this. Think of #### well. " + tail for tail in ("1+1=", "2+2", "some more =")]
    a, b = shared.capture(prompts, positions="####"), plain.capture(prompts, positions="####")
    assert a.manifest["passes"]["shared_prefixes"] == [{"tokens": prompts[0].index("####") + 3, "prompts": 3}]
    torch.testing.assert_close(a.resid_post, b.resid_post, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.tensor(a.entropy_bits), torch.tensor(b.entropy_bits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ("####", "anchor '####' does not occur in prompt 0"),
        (["Answer:", "nothing"], "anchor 'nothing' does not occur in prompt 0"),
        ((5, 5), r"span \(5, 5\) of prompt 0 is \[5, 5\), which is empty or outside"),
        ((0, 20), r"span \(0, 20\) of prompt 1 is \[0, 20\), which is empty or outside the prompt of 9 characters"),
        ([("Answer:",), ("Answer:", "A"), ("then",)], "prompt 1 asks for 2 positions and prompt 0 for 1"),
        ([("Answer:",), ("Answer:",)], "positions has 2 entries for 3 prompts"),
        ([("Answer:",), 4, ("then",)], "positions of prompt 1 must be anchors or character spans"),
        ("", "anchor '' does not occur in prompt 0"),
        (7, "positions must be 'boundary', anchors such as"),
        ([], "positions must be 'boundary', anchors such as"),
    ],
)
def test_places_that_do_not_exist_are_refused_by_name(extractor, positions, message):
    with pytest.raises(RequestError, match=message):
        extractor.capture(PROMPTS, positions=positions)


def test_token_ids_have_no_text_to_search(extractor):
    with pytest.raises(RequestError, match="'Answer:' cannot be placed in prompt 0, which was given as token ids"):
        extractor.capture([[5, 6, 7]], positions="Answer:")
    assert extractor.capture([[5, 6, 7]], positions=("boundary",)).resid_post.shape == (1, 1, 2, 32)
