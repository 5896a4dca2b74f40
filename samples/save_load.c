/* Keeps a session in a file: what was read need not be read again, not even by another process.
 *   sample_save_load MODEL TEXT FILE
 * Reads the text, saves the session, goes on; loads it, goes on from there: the same words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waveinfer.h>

enum { kTokens = 32 };

static wi_error error = {.struct_size = sizeof error};

static void check(wi_status status) {
  if (status == WI_OK) return;
  fprintf(stderr, "save_load: %s: %s\n", wi_status_name(status), error.message);
  exit(1);
}

/* Prints what comes next, and notes its tokens. */
static void go_on(wi_session* session, int32_t* tokens) {
  wi_event event = {.struct_size = sizeof event};
  for (int i = 0; i < kTokens; i++) {
    check(wi_session_decode(session, NULL, &event, &error));
    fwrite(event.text, 1, event.text_length, stdout);
    tokens[i] = event.token;
  }
  putchar('\n');
}

int main(int argc, char** argv) {
  wi_runtime* runtime;
  wi_model* model;
  wi_session *session, *loaded;
  int32_t before[kTokens], after[kTokens];
  uint64_t tokens;
  if (argc == 2 && !strcmp(argv[1], "--version")) return printf("sample_save_load %s\n", wi_version()), 0;
  const int help = argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"));
  if (help || argc != 4)
    return fputs(
               "usage: sample_save_load MODEL TEXT FILE\n"
               "Example: sample_save_load m.gguf 'In the beginning' beginning.wis\n",
               help ? stdout : stderr),
           !help;
  check(wi_runtime_create(NULL, &runtime, &error));
  check(wi_model_open(runtime, argv[1], NULL, NULL, &model, &error));
  check(wi_session_create(model, NULL, &session, &error));
  check(wi_session_append_text(session, argv[2], strlen(argv[2]), WI_TOKENIZE_ADD_BOS, NULL, NULL, &error));
  check(wi_session_save(session, argv[3], NULL, &error));
  go_on(session, before);

  check(wi_session_load(model, argv[3], NULL, NULL, &loaded, &error));
  check(wi_session_tokens(loaded, NULL, 0, &tokens, &error));
  printf("loaded: %llu tokens\n", (unsigned long long)tokens);
  go_on(loaded, after);
  printf("the same tokens: %s\n", memcmp(before, after, sizeof before) ? "no" : "yes");

  wi_session_release(loaded);
  wi_session_release(session);
  wi_model_release(model);
  wi_runtime_release(runtime);
  if (!ferror(stdout) && !fclose(stdout)) return 0;
  fputs("save_load: cannot write to standard output\n", stderr);
  return 1;
}
