"""The interactive figure of the site, as it is stored, in a real browser."""

from __future__ import annotations

from pathlib import Path

from browser import needs_browser, run_in_browser

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "play.html"
SCRIPT = """
    const all = (selector) => [...document.querySelectorAll(selector)];
    const button = (text) => all('.play button').find((b) => b.textContent === text);
    const names = all('.model .title').map((t) => t.firstChild.textContent);
    const verdicts = () => all('.verdict').map((v) => v.textContent);
    const found = {names, of_each: all('.choose button').map((choice) => {
      choice.click();
      button('Shuffle').click();
      const both = verdicts();
      button('Back').click();
      const permuted = all('.play input')[0];
      permuted.value = 100;
      permuted.dispatchEvent(new Event('input'));
      return {both, permuted: verdicts()};
    })};
    return found;
"""


@needs_browser
def test_only_scalegmn_stays_still(tmp_path: Path) -> None:
    found = run_in_browser(FIGURE.read_text(encoding="utf-8"), SCRIPT, tmp_path)
    assert found["names"] == ["ScaleGMN", "GMN", "MLP"]
    assert len(found["of_each"]) == 6
    for verdicts in found["of_each"]:
        assert verdicts["both"] == ["stays still", "moves", "moves"]
        # GMN respects permutations, and the MLP respects neither.
        assert verdicts["permuted"] == ["stays still", "stays still", "moves"]
