/* What goes wrong, and how it looks: a status, a message that names what and where, and everything as it was.
 *   sample_errors MODEL */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waveinfer.h>

static wi_error error = {.struct_size = sizeof error};

static void show(const char* what, wi_status status) {
  printf("%s\n  %s%s%s\n", what, wi_status_name(status), status ? ": " : "", status ? error.message : "");
}

static void check(wi_status status) {
  if (status == WI_OK) return;
  show("errors", status);
  exit(1);
}

int main(int argc, char** argv) {
  /* A million bytes for keys and values of all sessions. */
  const wi_runtime_params small = {.struct_size = sizeof small, .kv_budget_bytes = 1000000};
  wi_runtime* runtime;
  wi_model *model, *none = NULL;
  wi_session* session;
  wi_cancel* cancel;
  wi_event event = {.struct_size = sizeof event};
  if (argc == 2 && !strcmp(argv[1], "--version")) return printf("sample_errors %s\n", wi_version()), 0;
  const int help = argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"));
  if (help || argc != 2)
    return fputs("usage: sample_errors MODEL\nExample: sample_errors m.gguf\n", help ? stdout : stderr),
           !help;
  check(wi_runtime_create(&small, &runtime, &error));
  check(wi_model_open(runtime, argv[1], NULL, NULL, &model, &error));
  check(wi_session_create(model, NULL, &session, &error));

  show("a file that is not there", wi_model_open(runtime, "missing.gguf", NULL, NULL, &none, &error));
  const int64_t zeros[8] = {0};
  show("a file that is no model",
       wi_model_open_memory(runtime, zeros, sizeof zeros, NULL, NULL, &none, &error));
  const int32_t strange[] = {1, 2, 1 << 30};
  show("a token that is none", wi_session_prefill(session, strange, 3, NULL, NULL, &error));
  show("an answer to nothing", wi_session_decode(session, NULL, &event, &error));

  int32_t tokens[20000];
  for (int i = 0; i < 20000; i++) tokens[i] = 100 + i % 1000;
  show("a prompt beyond the budget", wi_session_prefill(session, tokens, 20000, NULL, NULL, &error));

  check(wi_cancel_create(&cancel, &error));
  wi_cancel_trigger(cancel);
  show("a call that was cancelled", wi_session_prefill(session, tokens, 200, NULL, cancel, &error));
  show("and the session is as it was", wi_session_prefill(session, tokens, 200, NULL, NULL, &error));

  wi_cancel_release(cancel);
  wi_session_release(session);
  wi_model_release(model);
  wi_runtime_release(runtime);
  if (!ferror(stdout) && !fclose(stdout)) return 0;
  fputs("errors: cannot write to standard output\n", stderr);
  return 1;
}
