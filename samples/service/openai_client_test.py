"""OpenAI's own client against a running service, which it ends by SIGTERM at last.

openai_client_test.py ADDRESS PROCESS; prints how many tests have passed."""

import json
import os
import signal
import sys
import urllib.request

import openai

FACT = "The password of Boaz the potter is copper meadow."
QUESTION = "What is the password of Boaz the potter?"
MESSAGES = [{"role": "user", "content": f"{FACT}\n\n{QUESTION}"}]

address, process = sys.argv[1], int(sys.argv[2])
client = openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0)
model = client.models.list().data[0].id


def a_chat_is_answered():
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content == FACT, answer
    assert answer.choices[0].finish_reason == "stop", answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, answer


def a_chat_is_streamed():
    with client.chat.completions.create(
        model=model, messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as stream:
        pieces = list(stream)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == FACT, text
    assert pieces[0].choices[0].delta.role == "assistant", pieces[0]
    assert pieces[-2].choices[0].finish_reason == "stop", pieces[-2]
    assert pieces[-1].usage.completion_tokens > 5 and not pieces[-1].choices, pieces[-1]


def the_clients_stream_helper_follows():
    with client.chat.completions.stream(model=model, messages=MESSAGES, temperature=0) as stream:
        stream.until_done()
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == FACT, answer


def a_completion_is_answered_and_streamed():
    request = dict(model=model, prompt="In the beginning", max_tokens=20, temperature=1, seed=5)
    whole = client.completions.create(**request)
    streamed = "".join(piece.choices[0].text for piece in client.completions.create(**request, stream=True))
    assert whole.choices[0].text == streamed != "", (whole, streamed)
    assert whole.usage.completion_tokens <= 20, whole


def a_stop_string_stops():
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, stop=[" copper"])
    assert answer.choices[0].message.content == FACT.split(" copper")[0], answer


def a_client_may_stop_listening():
    endless = dict(model=model, prompt="In the beginning", max_tokens=4000, logit_bias={"1": -100})
    with client.completions.create(**endless, stream=True) as stream:
        next(iter(stream))
    a_chat_is_answered()


def errors_are_the_clients_own():
    expect(openai.NotFoundError, "model_not_found", model="gpt-4", messages=MESSAGES)
    expect(openai.BadRequestError, "invalid_value", model=model, messages=MESSAGES, temperature=3)
    expect(openai.BadRequestError, "unsupported_parameter", model=model, messages=MESSAGES, n=2)
    expect(openai.BadRequestError, "invalid_value", model=model, messages=[])


def expect(kind, code, **request):
    try:
        answer = client.chat.completions.create(**request)
    except kind as error:
        assert error.code == code, error
    else:
        raise AssertionError(answer)


def a_document_is_read_and_asked():
    text = "And there was light. " * 100 + FACT + " And there was night. " * 100
    request = urllib.request.Request(address + "/v1/documents", text.encode(), {"Content-Type": "text/plain"})
    document = json.load(urllib.request.urlopen(request))
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, extra_body={"document": document["id"]}
    )
    assert answer.choices[0].message.content == FACT, answer
    assert answer.usage.prompt_tokens_details.cached_tokens == document["tokens"], answer


def a_stream_ends_before_the_service():
    request = dict(model=model, prompt="In the beginning", max_tokens=500, logit_bias={"1": -100})
    with client.completions.create(**request, stream=True) as stream:
        pieces = iter(stream)
        next(pieces)
        os.kill(process, signal.SIGTERM)
        reasons = [piece.choices[0].finish_reason for piece in pieces]
    assert reasons[-1] == "length", reasons[-1]


tests = [
    a_chat_is_answered,
    a_chat_is_streamed,
    the_clients_stream_helper_follows,
    a_completion_is_answered_and_streamed,
    a_stop_string_stops,
    a_client_may_stop_listening,
    errors_are_the_clients_own,
    a_document_is_read_and_asked,
    a_stream_ends_before_the_service,
]
for test in tests:
    test()
print(len(tests))
