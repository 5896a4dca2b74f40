/* The ABI in a few lines of C: open a model, read a prompt, write what comes next.
 *   embed MODEL.gguf "Once upon a time" */
#include <stdio.h>
#include <string.h>
#include <waveinfer.h>

int main(int argc, char** argv) {
  wi_error error = {.struct_size = sizeof error};
  wi_event event = {.struct_size = sizeof event};
  wi_runtime* runtime = NULL;
  wi_model* model = NULL;
  wi_session* session = NULL;
  if (argc == 2 && !strcmp(argv[1], "--version")) return printf("embed %s\n", wi_version()), 0;
  const int help = argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"));
  const char* usage = "usage: embed MODEL TEXT\nExample: embed m.gguf 'Once upon a time'\n";
  if (help || argc < 3) return fputs(usage, help ? stdout : stderr), !help;
  int failed =
      wi_runtime_create(NULL, &runtime, &error) ||
      wi_model_open(runtime, argv[1], NULL, NULL, &model, &error) ||
      wi_session_create(model, NULL, &session, &error) ||
      wi_session_append_text(session, argv[2], strlen(argv[2]), WI_TOKENIZE_ADD_BOS, NULL, NULL, &error);
  for (int i = 0; i < 64 && !failed && event.kind == WI_EVENT_TOKEN; i++) {
    failed = wi_session_decode(session, NULL, &event, &error);
    if (!failed) fwrite(event.text, 1, event.text_length, stdout);
  }
  if (failed) fprintf(stderr, "embed: %s\n", error.message);
  if (ferror(stdout) || fclose(stdout)) {
    fputs("embed: cannot write to standard output\n", stderr);
    failed = 1;
  }
  wi_session_release(session); /* a session holds its model, a model its runtime: any order will do */
  wi_model_release(model);
  wi_runtime_release(runtime);
  return failed;
}
