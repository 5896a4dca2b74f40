/* A conversation with a model: each line of standard input is a turn, the answer is streamed.
 *   sample_chat MODEL
 * Before each answer the whole conversation is rendered in the model's own chat template; what the session
 * has of it already is kept, the rest is read. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waveinfer.h>

enum { kMostTokens = 256 };

static wi_error error = {.struct_size = sizeof error};
static wi_chat_message* turns;
static uint64_t turn_count;

static void check(wi_status status) {
  if (status == WI_OK) return;
  fprintf(stderr, "chat: %s: %s\n", wi_status_name(status), error.message);
  exit(1);
}

static void say(const char* role, char* text, size_t length) {
  if (!(turns = realloc(turns, (turn_count + 1) * sizeof *turns))) exit(1);
  turns[turn_count++] = (wi_chat_message){
      .struct_size = sizeof *turns, .role = role, .content = text, .content_length = length};
}

/* Brings the session to where the assistant's next answer begins. */
static void read_conversation(wi_model* model, wi_session* session) {
  const wi_chat_params params = {.struct_size = sizeof params, .flags = WI_CHAT_ADD_GENERATION_PROMPT};
  uint64_t wanted_count, had_count, same = 0;
  check(wi_model_chat_tokens(model, turns, turn_count, &params, NULL, 0, &wanted_count, &error));
  check(wi_session_tokens(session, NULL, 0, &had_count, &error));
  int32_t* wanted = malloc(wanted_count * sizeof *wanted);
  int32_t* had = malloc((had_count + 1) * sizeof *had);
  if (!wanted || !had) exit(1);
  check(wi_model_chat_tokens(model, turns, turn_count, &params, wanted, wanted_count, &wanted_count, &error));
  check(wi_session_tokens(session, had, had_count, &had_count, &error));

  while (same < had_count && same < wanted_count && had[same] == wanted[same]) same++;
  check(wi_session_truncate(session, same, &error));
  check(wi_session_prefill(session, wanted + same, wanted_count - same, NULL, NULL, &error));
  free(wanted);
  free(had);
}

static void answer(wi_session* session) {
  wi_event event = {.struct_size = sizeof event};
  char* text = NULL;
  size_t length = 0;
  for (int i = 0; i < kMostTokens && event.kind == WI_EVENT_TOKEN; i++) {
    check(wi_session_decode(session, NULL, &event, &error));
    fwrite(event.text, 1, event.text_length, stdout);
    fflush(stdout);
    if (!(text = realloc(text, length + event.text_length + 1))) exit(1);
    memcpy(text + length, event.text, event.text_length);
    length += event.text_length;
  }
  putchar('\n');
  say("assistant", text, length);
}

int main(int argc, char** argv) {
  wi_runtime* runtime;
  wi_model* model;
  wi_session* session;
  if (argc == 2 && !strcmp(argv[1], "--version")) return printf("sample_chat %s\n", wi_version()), 0;
  const int help = argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"));
  if (help || argc != 2)
    return fputs("usage: sample_chat MODEL\nExample: sample_chat m.gguf\n", help ? stdout : stderr), !help;
  check(wi_runtime_create(NULL, &runtime, &error));
  check(wi_model_open(runtime, argv[1], NULL, NULL, &model, &error));
  check(wi_session_create(model, NULL, &session, &error));

  char* line = NULL;
  size_t room = 0;
  ssize_t length;
  while ((length = getline(&line, &room, stdin)) > 0) {
    if (line[length - 1] == '\n') length--;
    say("user", line, (size_t)length);
    line = NULL; /* the turn keeps it */
    room = 0;
    read_conversation(model, session);
    answer(session);
  }

  free(line);
  while (turn_count > 0) free((char*)turns[--turn_count].content);
  free(turns);
  wi_session_release(session);
  wi_model_release(model);
  wi_runtime_release(runtime);
  if (!ferror(stdout) && !fclose(stdout)) return 0;
  fputs("chat: cannot write to standard output\n", stderr);
  return 1;
}
