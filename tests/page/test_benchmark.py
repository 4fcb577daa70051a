"""The benchmark of the page: its visitors see what they time, on a store as it fills one."""

from pathlib import Path

from benchmarks.page import VISITORS, asked, fill, views, visiting
from benchmarks.scene import Scene
from tests.page.browser import home_of, served
from tests.postgres import by_login, new_database


def test_its_visitors_see_every_kind_of_view(server: str, template: str, tmp_path: Path) -> None:
    with new_database(server, template) as url:
        scene = Scene.open(url)
        fill(scene, num_rows=8_192, with_texts=1_024)
        places = views(scene)
        assert len(places) < VISITORS
        with (
            served(home_of(tmp_path) | {"TRINITY_DB_URL": by_login(url)}) as page,
            visiting(page.address, places) as visitors,
        ):
            asked(visitors, "hide")
            shown = asked(visitors, "stop")
    assert {one.kind for one in shown} == {place.kind for place in places}
    assert [one.kind for one in shown if one.seconds is None] == []
