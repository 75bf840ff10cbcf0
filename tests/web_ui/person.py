"""A user of the server under test: requests of their own, and a browser profile that is signed in."""

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

import httpx
from api.server_process import ServerProcess
from playwright.sync_api import Browser

from web_ui.browser import LAPTOP, WAIT_MS, Profile, Tab, new_profile, open_tab

NUMBERS = count(1)
PASSWORD = "a good long password"


class Person:
    """A new user. `api` sends requests as this user; profiles of `profile()` are signed in."""

    def __init__(self, server: ServerProcess, browser: Browser) -> None:
        self.server = server
        self.name = f"person{next(NUMBERS)}"
        self.browser = browser
        body = {"username": self.name, "password": PASSWORD}
        signed_in = httpx.post(f"{server.url}/auth/register", json=body).raise_for_status().json()["data"]
        self._tokens = signed_in
        self.api = httpx.Client(
            base_url=server.url,
            headers={"authorization": f"Bearer {signed_in['access_token']}", "accept": "application/json"},
            timeout=30,
        )

    def get(self, path: str, **query: Any) -> Any:
        return self.api.get(path, params=query).raise_for_status().json()["data"]

    def post(self, path: str, body: object = None) -> Any:
        return self.api.post(path, json=body).raise_for_status().json()["data"]

    def put(self, path: str, body: object) -> Any:
        return self.api.put(path, json=body).raise_for_status().json()["data"]

    def wait_for(self, run_id: str, status: str) -> None:
        """Waits until the run has this status. Raises TimeoutError."""
        until = time.monotonic() + WAIT_MS / 1000
        while (present := self.get(f"/runs/{run_id}")["status"]) != status:
            if time.monotonic() > until:
                raise TimeoutError(f"the run is {present}, not {status}")
            time.sleep(0.05)

    def sign_in_as_admin(self) -> httpx.Client:
        body = {"username": "admin", "password": "admin123"}
        signed_in = httpx.post(f"{self.server.url}/auth/login", json=body).raise_for_status().json()["data"]
        return httpx.Client(
            base_url=self.server.url, headers={"authorization": f"Bearer {signed_in['access_token']}"}
        )

    @contextmanager
    def profile(self, size: tuple[int, int] = LAPTOP, *, is_touched: bool = False) -> Generator[Profile]:
        """A browser profile, signed in with a sign-in of its own; `is_touched`: on a touch screen."""
        signed_in = self.post("/auth/login", {"username": self.name, "password": PASSWORD})
        stored = {
            "access": signed_in["access_token"],
            "refresh": signed_in["refresh_token"],
            "expiresAt": (time.time() + signed_in["expires_in"]) * 1000,
        }
        entry = json.dumps(json.dumps(stored))
        # The frame that draws diagrams has no origin, and so no storage.
        script = (
            "if (self.origin !== 'null' && !localStorage.getItem('luxx.sign-in')) "
            f"localStorage.setItem('luxx.sign-in', {entry})"
        )
        with new_profile(
            self.browser, self.server.url, size, is_touched=is_touched, signs_in=script
        ) as profile:
            yield profile

    @contextmanager
    def tab(self, size: tuple[int, int] = LAPTOP, *, is_touched: bool = False) -> Generator[Tab]:
        """A tab of a profile of its own."""
        with (
            self.profile(size, is_touched=is_touched) as profile,
            open_tab(self.browser, self.server.url, profile=profile) as tab,
        ):
            yield tab


NewPerson = Callable[[], Person]
