"""What `mkdocs build` does beyond its configuration: pages made from other files, formulas as MathML, the figure.

Formulas become MathML while the site is built, which browsers draw themselves: nothing is fetched and no script runs.
"""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from cells import rendered  # noqa: E402

PACKAGE = ROOT / "src" / "scalegmn"
FIGURE = ROOT / "docs" / "figures" / "play.html"
# Pages that lie beside docs/, and what they are called on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the pages of the reference into the nav."""
    reference = [{name: f"reference/{name}.md"} for name in ("scalegmn", *parts())]
    nav: list[Any] = config.nav or []
    config.nav = [{"Reference": reference} if entry == {"Reference": "reference"} else entry for entry in nav]
    return config


def parts() -> dict[str, list[str]]:
    """The top-level modules and packages of the library, each with the names of its public modules."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).with_suffix("").parts
        if any(part.startswith("__main__") for part in place) or place[0] == "__init__":
            continue
        module = ".".join(["scalegmn", *(part for part in place if part != "__init__")])
        found.setdefault(place[0], []).append(module)
    return found


def front() -> str:
    """The page of what `import scalegmn` offers, each name with a link to where it is described."""
    lines = ["# scalegmn", "", "What `import scalegmn` offers; each name is loaded when it is first used.", ""]
    lines += ["| name | defined in |", "|---|---|"]
    for name, module in re.findall(r'^    "(\w+)": "([\w.]+)",$', (PACKAGE / "__init__.py").read_text("utf-8"), re.M):
        page = module.split(".")[1]
        lines.append(f"| [`{name}`]({page}.md#{module}.{name}) | `{module}` |")
    return "\n".join(lines) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    for name, page in OUTSIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=inside(text)))
    files.append(File.generated(config, "reference/scalegmn.md", content=front()))
    for part, modules in parts().items():
        text = f"# scalegmn.{part}\n\n" + "\n\n".join(f"::: {module}" for module in modules) + "\n"
        files.append(File.generated(config, f"reference/{part}.md", content=text))
    for script in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        page, pictures = rendered(script)
        files.append(File.generated(config, f"tutorials/{script.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def inside(text: str) -> str:
    """The links of a page that lies beside docs/, as they are within it."""
    for name, page in OUTSIDE.items():
        text = re.sub(rf"\]\({re.escape(name)}(#[^)]*)?\)", lambda m, page=page: f"]({page}{m[1] or ''})", text)
    text = re.sub(r"\]\(docs/([^)]*)\)", r"](\1)", text)
    text = text.replace('src="docs/', 'src="')
    # Files that are not pages are named, not linked.
    return re.sub(r"\[([^]]*)\]\((?:LICENSE|CITATION\.cff)\)", r"`\1`", text)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from docs/ to pages beside it and to tutorials, which are scripts there."""
    for name, target in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name})", f"]({target})")
    return re.sub(r"\]\(((?:\.\./)?tutorials/\w+|\d\d_\w+)\.py\)", r"](\1.md)", markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, values that stay in one line, and the interactive figure where its place is marked."""
    html = html.replace(" ± ", "&nbsp;±&nbsp;")
    html = re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', _formula, html, flags=re.DOTALL)
    return html.replace("<!-- play -->", FIGURE.read_text(encoding="utf-8"))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The search works from a disk with a script of ours, where the theme would fetch one."""
    return _nothing_fetched(output)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for pages that are not made of markdown."""
    return _nothing_fetched(output_content)


def _nothing_fetched(output: str) -> str:
    script = (ROOT / "docs" / "tools" / "worker.js").read_text(encoding="utf-8")
    return re.sub(r'<script src="https://[^"]*"></script>', lambda _: f"<script>{script}</script>", output)


def _formula(match: re.Match[str]) -> str:
    source = unescape(match[2]).strip()
    display = "block" if source.startswith("\\[") else "inline"
    text: str = convert(source[2:-2], display=display)
    return text
