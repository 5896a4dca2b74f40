// Service answers questions over HTTP as OpenAI's API does, with a model of libwaveinfer, and keeps long
// documents as sessions: a document is read once and asked many times, each time from a fork that takes
// microseconds. Only Go's standard library and the Go binding of libwaveinfer are used.
//
//	go run . --model ../model/needle-f16.gguf
//
// --help lists the other options; the library is found by pkg-config, as the binding's documentation says. Then
// http://127.0.0.1:8080/ is a page to drop a document on and to ask. The rest is for programs; any client of
// OpenAI's API will do, with base_url http://127.0.0.1:8080/v1 and any key:
//
//	curl http://127.0.0.1:8080/v1/chat/completions -d '{
//	  "model": "needle-f16", "temperature": 0, "messages": [{"role": "user", "content":
//	  "The password of Boaz the potter is copper meadow.\n\nWhat is the password of Boaz the potter?"}]}'
//
//	curl -N http://127.0.0.1:8080/v1/completions -d '{"model": "needle-f16", "prompt": "In the beginning",
//	  "max_tokens": 20, "stream": true, "stream_options": {"include_usage": true}}'
//
// # Documents
//
// A text is read once, with progress where it is asked for, and named by its content: whoever sends the same
// text again gets the same id at once, also after a restart, as documents are saved.
//
//	curl -N --data-binary @book.txt 'http://127.0.0.1:8080/v1/documents?name=book.txt&stream=true'
//	curl http://127.0.0.1:8080/v1/documents/$ID/ask \
//	  -d '{"question": "What is the password of Boaz the potter?", "stream": true}'
//	curl http://127.0.0.1:8080/v1/chat/completions -d '{"model": "needle-f16", "document": "'$ID'",
//	  "messages": [{"role": "user", "content": "What is the password of Boaz the potter?"}]}'
//	curl http://127.0.0.1:8080/v1/documents               # all of them
//	curl http://127.0.0.1:8080/v1/documents/$ID           # one
//	curl -X DELETE http://127.0.0.1:8080/v1/documents/$ID
//
// The text is sent as it is, or with Content-Type: application/json as {"text": ..., "name": ..., "stream":
// true}. In a conversation it stands before the first user's message. Nothing can stand before what was read
// once, so a system message comes right behind it. Documents that nobody asks leave memory when others need
// it, and come back from their files when somebody does: all who ask wait for that together, it goes on when they
// leave, and a stream says meanwhile that it is alive.
//
// None is deleted but by a client: where --documents-disk bytes are taken, or there are 10,000 documents, new ones are
// refused with 507. One that could not be saved stays in memory, is tried again, and is counted in /metrics.
//
// Each model's documents are in a folder of its own within --documents, known by what is in the model's files, and one
// service at a time has it. Documents that earlier versions have saved in --documents itself are found there by
// every model, and stay as they are until they are deleted.
//
// A model without a chat template answers /v1/completions alone; in /ask the question then simply follows the
// document, on a line of its own.
//
// # What is understood
//
// Of OpenAI's fields: model, messages, prompt, max_tokens, max_completion_tokens, temperature, top_p, seed,
// stop, logit_bias, stream, stream_options; beyond them top_k, min_p and repetition_penalty as other servers
// have them, document, and "statistics": true for what each token has read. What would change the answer and
// is not understood is an error that names it; fields that change nothing (user, metadata, ...) are ignored.
// A request's body has 1 MiB at most, or 64 bytes for each token of the context where that is more, and never more
// than --document-bytes. Without a seed each answer has one of its own; with one, answers repeat. Without
// max_tokens a conversation's answer has 1,024 tokens at most, a completion 16.
//
// # Load
//
// Requests become tasks of the runtime's engine: it reads prompts in pieces between steps in which all who
// write get a token, and admits each when its planned memory is free. At most --parallel requests are with
// the engine, --queue more wait, --queue-time at most; others get 429 with Retry-After. One whose client goes
// away ends within a step, and one that takes nothing of its answer for 30 seconds is given up. /metrics is for
// Prometheus, /healthz for a load balancer. After SIGTERM there are no new requests, running ones have --grace to
// end, and documents that are not yet saved are.
//
// Weights are in memory, so that what becomes of the model's file does not matter; --load mapped leaves them in it.
//
// It listens on this machine only unless told otherwise, and knows no users: put a proxy with TLS and keys in
// front of it. One on the same machine that passes on the name it was asked by is told of by --host.
//
// # Read the code
//
// main.go starts and stops it, service.go says what is answered where. A request goes through chat.go,
// completions.go or documents.go, which make a prompt of it (json.go, prompt.go), waits for its turn (gate.go), is given
// to the engine (asked.go, engine.go, answer.go), and its answer is sent (reply.go, event_stream.go). library.go,
// document.go, loading.go, disk.go and folder.go keep what was read. problem.go is everything that goes wrong.
package main
