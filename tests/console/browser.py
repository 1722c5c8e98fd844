"""A headless Chromium, driven by Selenium, for tests of the console."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

ROOT: Final = Path(__file__).parent.parent.parent
SCREENSHOTS: Final = ROOT / "build" / "screenshots"
"""Kept as artifacts, and ignored by git."""

AXE: Final = Path(__file__).parent / "vendor" / "axe-4.14.1.min.js"
SIZES: Final = {"desktop": (1280, 900), "phone": (390, 844), "narrow": (320, 640)}
"""A phone shows a page that is too wide at a smaller scale: only the others find it too wide."""
SCHEMES: Final = ("light", "dark")
WAIT_S: Final = 60

RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


def missing() -> str | None:
    """Why there is no browser; None if there is one."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed (Debian: chromium, chromium-driver)"
    return None


class Browser:
    """A browser with one window.

    Args:
        driver: Selenium's.
        base: the URL of the console.
    """

    def __init__(self, driver: webdriver.Chrome, base: str) -> None:
        self.driver = driver
        self.base = base

    def view(self, size: str, scheme: str) -> None:
        """Use the size of a device, and a color scheme."""
        width, height = SIZES[size]
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )

    def open(self, path: str) -> None:
        """Go to a page of the console."""
        self.driver.get(self.base + path)
        self.wait("return document.readyState === 'complete'")

    def wait(self, script: str) -> None:
        """Wait until a script returns something true."""
        WebDriverWait(self.driver, WAIT_S, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(script), script
        )

    def find(self, selector: str) -> WebElement:
        """The first element that matches."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """The elements that match."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self) -> str:
        """The text of the page."""
        return self.find("main").text

    def run(self, script: str, *values: object) -> Any:
        """The result of a script."""
        return self.driver.execute_script(script, *values)

    def screenshot(self, name: str) -> Path:
        """Save a screenshot of the window."""
        path = SCREENSHOTS / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )
        path.write_bytes(self.driver.get_screenshot_as_png())
        return path

    def violations(self) -> list[str]:
        """What axe finds wrong with the page: rule, how bad it is, and where."""
        self.driver.execute_script(AXE.read_text("utf-8"))
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {runOnly: arguments[0]}).then((one) => done(one.violations));",
            list(RULES),
        )
        return [
            f"{one['impact']} {one['id']}: {node['html'][:160]}"
            for one in found
            for node in one["nodes"]
        ]

    def problems(self) -> list[str]:
        """What the browser complained about since the last call, such as a broken policy."""
        return [
            f"{one['level']}: {one['message']}"
            for one in self.driver.get_log("browser")
            if one["level"] in {"SEVERE", "WARNING"}
        ]


@contextmanager
def browser(base: str) -> Generator[Browser]:
    """A browser without any profile, that ends with the block."""
    options = Options()
    options.binary_location = shutil.which("chromium") or "chromium"
    options.add_argument("--headless=new")
    options.add_argument("--disable-dev-shm-usage")
    options.add_argument("--disable-gpu")
    options.add_argument("--no-first-run")
    options.add_argument("--disable-background-networking")
    options.add_argument("--force-prefers-reduced-motion")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has none for root
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver, base)
    finally:
        driver.quit()
