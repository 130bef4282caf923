import re

import pytest

from pipeline.clean import clean
from pipeline.errors import DocumentError
from pipeline.html_text import blocks, parse_html, render

STEPS = "".join(
    f"<p>Step {n}: stir the bowl slowly until the mixture is smooth and shiny all over.</p>" for n in range(6)
)
RECIPE = f"""<!DOCTYPE html><html lang="en-GB"><head><title>Plain cake - The Cake Site</title>
<meta property="og:site_name" content="The Cake Site">
<script type="application/ld+json">{{"@type": "Recipe", "name": "Plain cake", "cookTime": "PT40M"}}</script>
<style>p {{ color: red }}</style></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/cakes">Cakes</a></li></ul></nav>
<main><h1>Plain cake</h1><div class="facts"><span>Serves 8</span><br><span>Cook: 40 mins</span></div>
<h2>Ingredients</h2><ul><li>200g <b>flour</b></li><li>3 eggs, beaten</li><li>100g&nbsp;sugar</li></ul>
<table><tr><th>Nutrient</th><th>Amount</th></tr><tr><td>Fat</td><td>5 g</td></tr></table>
<h2>Method</h2>{STEPS}
<div style="display: none">Secret coupon SAVE50</div>
<img src="data:image/png;base64,{"A" * 5000}">
</main><footer><a href="/imprint">Imprint</a> <a href="/jobs">Jobs</a></footer></body></html>"""


def test_a_recipe_page_keeps_headings_lists_tables_and_facts():
    cleaned = clean(RECIPE.encode(), "text/html")
    for line in ("# Plain cake", "Serves 8", "Cook: 40 mins", "## Ingredients", "- 200g flour", "- 3 eggs, beaten"):
        assert line in cleaned.text.splitlines()
    assert "- 100g sugar" in cleaned.text
    assert "Nutrient | Amount\nFat | 5 g" in cleaned.text
    assert not re.search("coupon|Imprint|Cakes|color|base64", cleaned.text)
    assert (cleaned.title, cleaned.language, cleaned.cleaner) == ("Plain cake", "en-GB", "structure")
    assert cleaned.metadata["site"] == "The Cake Site"
    assert cleaned.metadata["json_ld"][0]["cookTime"] == "PT40M"


def test_an_article_is_left_to_trafilatura_and_gets_its_title():
    paragraphs = "".join(
        f"<p>Paragraph {n} tells how the town council met on Tuesday, what it heard, and what it decided.</p>"
        for n in range(8)
    )
    page = f"<html><head><title>Council meets</title></head><body><article>{paragraphs}</article></body></html>"
    cleaned = clean(page.encode(), "text/html")
    assert cleaned.cleaner == "trafilatura"
    assert cleaned.text.startswith("# Council meets\n\nParagraph 0")
    assert "Paragraph 7" in cleaned.text


@pytest.mark.parametrize(
    ("page", "rung", "text"),
    [
        ("<body><nav>x</nav><div>Only a few words.</div></body>", "careful", "Only a few words."),
        ("<body><footer><p><a href='/x'>Imprint</a></p></footer></body>", "visible", "Imprint"),
        ("<body><div hidden>Shown by a script only</div></body>", "hidden", "Shown by a script only"),
        ("<body><noscript>Turn scripts on</noscript></body>", "trafilatura", "Turn scripts on"),
        ("<div>" * 5000 + "deep<script>no</script> inside", "stripped", "deep\ninside"),
    ],
)
def test_the_ladder_says_which_rung_gave_the_text(page, rung, text):
    cleaned = clean(page.encode(), "text/html")
    assert (cleaned.cleaner, cleaned.text) == (rung, text)


@pytest.mark.parametrize("page", ["<html><body><script>var x = 1</script></body></html>", "<p> </p>", "   "])
def test_a_page_without_text_is_an_error_not_an_empty_text(page):
    with pytest.raises(DocumentError) as caught:
        clean(page.encode(), "text/html")
    assert caught.value.reason == "empty"


def test_hostile_sizes_end_with_their_text():
    nested = "<div>" * 5000 + "deep inside" + "</div>" * 5000
    assert clean(f"<body>{nested}</body>".encode(), "text/html").text == "deep inside"
    line = "<p>" + "words and more words " * 200_000 + "end.</p>"
    assert clean(f"<body>{line}</body>".encode(), "text/html").text.endswith("end.")
    cells = "<table>" * 300 + "<tr><td>core</td></tr>" + "</table>" * 300
    assert "core" in clean(cells.encode(), "text/html").text


def test_bad_markup_in_every_place_still_gives_text():
    page = "<html><script type='application/ld+json'>{broken</script><ul><li>a<li>b</ul></b></i><p>c &#0; &#xD800; d"
    text = clean(page.encode(), "text/html").text
    assert "- a\n- b" in text
    assert "\x00" not in text


def test_markdown_and_plain_text_keep_their_lines():
    cleaned = clean(b"\xef\xbb\xbf# Head\r\n\r\n\r\n\r\nBody \t\r\nline", "text/markdown")
    assert (cleaned.text, cleaned.title, cleaned.cleaner) == ("# Head\n\nBody\nline", "Head", "markdown")
    assert clean(b"a ![](data:image/png;base64," + b"A" * 100 + b") b", "text/plain").text == "a ![]() b"


def test_binary_data_under_a_text_type_is_refused():
    with pytest.raises(DocumentError) as caught:
        clean(b"\x89PNG" + bytes(range(32)) * 50, "text/html")
    assert caught.value.reason == "binary"


def test_repairs_are_reported():
    cleaned = clean(b"caf\xe9 \x00 ok", "text/plain")
    assert cleaned.text == "café  ok"
    assert cleaned.metadata == {"charset": "windows-1252", "charset_from": "fallback", "repairs": {"nul": 1}}


def test_layout_tables_are_blocks_and_data_tables_are_rows():
    page = (
        "<table><tr><td><h2>Left</h2><p>One.</p></td><td><table><tr><td>a</td><td>b</td></tr></table></td></tr></table>"
        "<table><tr><th>Time:</th><td>1 h</td></tr><tr><th>h1</th><th>h2</th></tr></table>"
        "<dl><dt>Term</dt><dd>Meaning</dd></dl><pre>x  =\n  1</pre>"
    )
    tree = parse_html(page)
    assert (
        render(blocks(tree))
        == "## Left\n\nOne.\n\na | b\nTime: 1 h\nh1 | h2\n\n- Term\n- Meaning\n\n```\nx  =\n  1\n```"
    )
