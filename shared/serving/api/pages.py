"""The two pages, chat and dashboard: files as they lie in static/, with a policy that gives them nothing else."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

from shared.serving.errors import ApiError

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# The pages need nothing but these files and this server's answers, and may be given nothing else: no script or style
# that stands in the page itself, so that text which slipped in as markup still could do nothing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {file.name: file for file in STATIC.iterdir() if file.suffix in TYPES}  # as they are at the start
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # ask each time: the file may be a newer one after the server's restart
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def chat_page() -> Response:
    """The chat, at /."""
    return page("chat.html")


@router.get("/dashboard")
async def dashboard_page() -> Response:
    """The live numbers, at /dashboard."""
    return page("dashboard.html")


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """A page's styles and scripts."""
    return page(name)


def page(name: str) -> Response:
    """One file of static/. Raises ApiError 404 for any other name."""
    if name not in FILES:
        raise ApiError(404, f"There is nothing at GET /static/{name}.")
    return FileResponse(FILES[name], media_type=TYPES[FILES[name].suffix], headers=HEADERS)
