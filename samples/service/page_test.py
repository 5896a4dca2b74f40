"""The service's page in Chromium, without a screen.

page_test.py ADDRESS; prints how many tests have passed. CHROME and CHROMEDRIVER name other programs than Debian's."""

import json
import os
import sys
import tempfile
import urllib.request

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

FACT = "The password of Boaz the potter is copper meadow."
QUESTION = "What is the password of Boaz the potter?"

# Drops a text on an element, as a hand would: the page sees the same events.
DROP = """
const files = new DataTransfer();
files.items.add(new File([arguments[1]], arguments[2], {type: 'text/plain'}));
for (const type of ['dragenter', 'dragover', 'drop'])
  arguments[0].dispatchEvent(new DragEvent(type, {dataTransfer: files, bubbles: true, cancelable: true}));
"""
# Remembers all that an element says from now on.
WATCH = """
window.seen = window.seen || {};
const all = window.seen[arguments[0].id] = [];
new MutationObserver(() => all.push(arguments[0].textContent))
  .observe(arguments[0], {childList: true, characterData: true, subtree: true});
"""

address = sys.argv[1]


def open_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROME", "/usr/bin/chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def find(element):
    return browser.find_element(By.ID, element)


def until(what, condition):
    WebDriverWait(browser, 120).until(lambda _: condition(), what)


def watch(element):
    browser.execute_script(WATCH, find(element))


def seen(element):
    return browser.execute_script("return window.seen[arguments[0]]", element)


def documents():
    return browser.find_elements(By.CSS_SELECTOR, "#documents li")


def a_document_is_dropped_and_its_reading_watched():
    text = "And there was light upon the water. " * 700 + FACT + " And there was night. " * 700
    watch("readingText")
    browser.execute_script(DROP, find("drop"), text, "book.txt")
    until("the document is listed", lambda: len(documents()) == 1)
    assert "book.txt" in documents()[0].text, documents()[0].text
    assert any("tokens read" in line for line in seen("readingText")), seen("readingText")
    assert not find("reading").is_displayed() and not find("problem").is_displayed()


def a_question_is_answered_token_by_token():
    watch("answer")
    find("question").send_keys(QUESTION)
    find("send").click()
    until("the answer is there", lambda: find("answer").text == FACT)
    until("it has ended", lambda: find("send").is_enabled())
    states = seen("answer")
    assert len(states) > 5 and all(FACT.startswith(state) for state in states), states


def bytes_and_coverage_are_told():
    assert int(find("tokens").text) > 5, find("tokens").text
    read, held = find("read").text, find("held").text
    assert read.endswith("B") and in_bytes(read) > 0, read
    assert in_bytes(held) > in_bytes(read), (read, held)
    assert 0 < float(find("coverage").text.removesuffix(" %")) <= 100, find("coverage").text
    assert len(browser.find_elements(By.CSS_SELECTOR, "#chart rect")) > 5


def in_bytes(text):
    number, unit = text.split()
    return float(number) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def a_file_may_be_chosen_instead():
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(FACT + " Chosen.")
        file.flush()
        find("file").send_keys(file.name)
        until("the second document is listed", lambda: len(documents()) == 2)


def what_is_no_text_is_refused_in_words():
    browser.execute_script(DROP, find("drop"), "", "empty.txt")
    until("the problem is told", lambda: find("problem").is_displayed())
    assert "empty" in find("problem").text, find("problem").text


def documents_are_deleted():
    for left in (1, 0):
        documents()[0].find_element(By.TAG_NAME, "button").click()
        until("it is gone", lambda left=left: len(documents()) == left)
    assert json.load(urllib.request.urlopen(address + "/v1/documents"))["data"] == []


def the_console_is_quiet():
    wrong = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    # Of the request that was refused, and of the icon that browsers ask for.
    wrong = [line for line in wrong if "400" not in line["message"] and "favicon" not in line["message"]]
    assert not wrong, wrong


tests = [
    a_document_is_dropped_and_its_reading_watched,
    a_question_is_answered_token_by_token,
    bytes_and_coverage_are_told,
    a_file_may_be_chosen_instead,
    what_is_no_text_is_refused_in_words,
    documents_are_deleted,
    the_console_is_quiet,
]
browser = open_browser()
try:
    browser.get(address)
    for test in tests:
        test()
finally:
    browser.quit()
print(len(tests))
