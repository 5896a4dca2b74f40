#include "callbacks.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "waveinfer.h"

static JavaVM* vm;
static jclass callbacks;
static jmethodID on_log, on_log_released, on_progress, on_logits, on_read, on_write, on_notified;
static pthread_key_t attached; /* set on threads that were attached here */

/* ============================================ Into Java ============================================ */

static void detach(void* env) {
  if (env) (*vm)->DetachCurrentThread(vm);
}

/* The calling thread's. One of the library's own is attached the first time, as a daemon, for as long as it
 * lives; the VM unblocks on it the signals that it needs. NULL if it can't be: the VM is ending. */
static JNIEnv* current(void) {
  void* env = NULL;
  if ((*vm)->GetEnv(vm, &env, JNI_VERSION_1_8) == JNI_OK) return env;
  JavaVMAttachArgs args = {.version = JNI_VERSION_1_8, .name = "waveinfer"};
  if ((*vm)->AttachCurrentThreadAsDaemon(vm, &env, &args) != JNI_OK) return NULL;
  pthread_setspecific(attached, env);
  return env;
}

/* The methods of Callbacks catch everything; should one not even begin, the call ends. */
static int32_t ended(JNIEnv* env, int32_t result) {
  if (!(*env)->ExceptionCheck(env)) return result;
  (*env)->ExceptionClear(env);
  return 1;
}

static void log_line(void* user, int32_t level, const char* message) {
  JNIEnv* env = current();
  if (!env) return;
  jbyteArray bytes = wi_jni_text(env, message);
  if (bytes) (*env)->CallStaticVoidMethod(env, callbacks, on_log, (jlong)(intptr_t)user, level, bytes);
  ended(env, 0);
  (*env)->DeleteLocalRef(env, bytes);
}

static void log_released(void* user) {
  JNIEnv* env = current();
  if (!env) return;
  (*env)->CallStaticVoidMethod(env, callbacks, on_log_released, (jlong)(intptr_t)user);
  ended(env, 0);
}

static int32_t progress(void* user, uint64_t done, uint64_t total) {
  JNIEnv* env = current();
  if (!env) return 1;
  return ended(env, (*env)->CallStaticIntMethod(env, callbacks, on_progress, (jlong)(intptr_t)user,
                                                (jlong)done, (jlong)total));
}

static int32_t logits(void* user, float* values, uint64_t vocab) {
  JNIEnv* env = current();
  if (!env) return 1;
  jobject buffer = (*env)->NewDirectByteBuffer(env, values, (jlong)(vocab * sizeof *values));
  if (!buffer) return ended(env, 1);
  int32_t result = (*env)->CallStaticIntMethod(env, callbacks, on_logits, (jlong)(intptr_t)user, buffer);
  result = ended(env, result);
  (*env)->DeleteLocalRef(env, buffer);
  return result;
}

static int32_t read_bytes(void* user, uint64_t offset, void* to, uint64_t count) {
  JNIEnv* env = current();
  if (!env) return 1;
  jobject buffer = (*env)->NewDirectByteBuffer(env, to, (jlong)count);
  if (!buffer) return ended(env, 1);
  int32_t result =
      (*env)->CallStaticIntMethod(env, callbacks, on_read, (jlong)(intptr_t)user, (jlong)offset, buffer);
  result = ended(env, result);
  (*env)->DeleteLocalRef(env, buffer);
  return result;
}

static int32_t write_bytes(void* user, const void* from, uint64_t count) {
  JNIEnv* env = current();
  if (!env) return 1;
  jobject buffer = (*env)->NewDirectByteBuffer(env, (void*)from, (jlong)count);
  if (!buffer) return ended(env, 1);
  int32_t result = (*env)->CallStaticIntMethod(env, callbacks, on_write, (jlong)(intptr_t)user, buffer);
  result = ended(env, result);
  (*env)->DeleteLocalRef(env, buffer);
  return result;
}

static void notified(void* user) {
  JNIEnv* env = current();
  if (!env) return;
  (*env)->CallStaticVoidMethod(env, callbacks, on_notified, (jlong)(intptr_t)user);
  ended(env, 0);
}

/* The numbers are those of class Callbacks. */
JNIEXPORT jlong JNICALL Java_waveinfer_NativeJNI_callback(JNIEnv* env, jclass type, jint which) {
  (void)env, (void)type;
  switch (which) {
    case 0:
      return (jlong)(intptr_t)log_line;
    case 1:
      return (jlong)(intptr_t)log_released;
    case 2:
      return (jlong)(intptr_t)progress;
    case 3:
      return (jlong)(intptr_t)logits;
    case 4:
      return (jlong)(intptr_t)read_bytes;
    case 5:
      return (jlong)(intptr_t)write_bytes;
    case 6:
      return (jlong)(intptr_t)notified;
    default:
      return 0;
  }
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* loading, void* reserved) {
  (void)reserved;
  vm = loading;
  void* found = NULL;
  if ((*vm)->GetEnv(vm, &found, JNI_VERSION_1_8) != JNI_OK) return JNI_ERR;
  if (pthread_key_create(&attached, detach)) return JNI_ERR;
  JNIEnv* env = found;
  jclass local = (*env)->FindClass(env, "waveinfer/Callbacks");
  if (!local) return JNI_ERR;
  callbacks = (*env)->NewGlobalRef(env, local);
  if (!callbacks || !(on_log = (*env)->GetStaticMethodID(env, local, "log", "(JI[B)V")) ||
      !(on_log_released = (*env)->GetStaticMethodID(env, local, "logReleased", "(J)V")) ||
      !(on_progress = (*env)->GetStaticMethodID(env, local, "progress", "(JJJ)I")) ||
      !(on_logits = (*env)->GetStaticMethodID(env, local, "logits", "(JLjava/nio/ByteBuffer;)I")) ||
      !(on_read = (*env)->GetStaticMethodID(env, local, "read", "(JJLjava/nio/ByteBuffer;)I")) ||
      !(on_write = (*env)->GetStaticMethodID(env, local, "write", "(JLjava/nio/ByteBuffer;)I")) ||
      !(on_notified = (*env)->GetStaticMethodID(env, local, "notified", "(J)V")))
    return JNI_ERR;
  return JNI_VERSION_1_8;
}

/* ============================================ Memory ============================================ */

static void throw_out_of_memory(JNIEnv* env) {
  jclass type = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
  if (type) (*env)->ThrowNew(env, type, "no native memory");
}

/* Zeroed; 0 bytes give an address of their own too. */
JNIEXPORT jlong JNICALL Java_waveinfer_NativeJNI_allocate(JNIEnv* env, jclass type, jlong bytes) {
  (void)type;
  void* made = calloc(1, bytes > 0 ? (size_t)bytes : 1);
  if (!made) throw_out_of_memory(env);
  return (jlong)(intptr_t)made;
}

JNIEXPORT void JNICALL Java_waveinfer_NativeJNI_release(JNIEnv* env, jclass type, jlong address) {
  (void)env, (void)type;
  free((void*)(intptr_t)address);
}

/* Its bytes and a NUL, to be released. */
JNIEXPORT jlong JNICALL Java_waveinfer_NativeJNI_copy(JNIEnv* env, jclass type, jbyteArray bytes) {
  (void)type;
  const jsize length = (*env)->GetArrayLength(env, bytes);
  char* made = malloc((size_t)length + 1);
  if (!made) return throw_out_of_memory(env), 0;
  (*env)->GetByteArrayRegion(env, bytes, 0, length, (jbyte*)made);
  made[length] = 0;
  return (jlong)(intptr_t)made;
}

static jbyteArray array_of(JNIEnv* env, const char* from, jlong length) {
  if (length < 0 || length > INT32_MAX - 8) return throw_out_of_memory(env), NULL;
  jbyteArray made = (*env)->NewByteArray(env, (jsize)length);
  if (made) (*env)->SetByteArrayRegion(env, made, 0, (jsize)length, (const jbyte*)from);
  return made;
}

JNIEXPORT jbyteArray JNICALL Java_waveinfer_NativeJNI_bytes(JNIEnv* env, jclass type, jlong address,
                                                            jlong length) {
  (void)type;
  return array_of(env, (const char*)(intptr_t)address, length);
}

jbyteArray wi_jni_text(JNIEnv* env, const char* text) {
  return text ? array_of(env, text, (jlong)strlen(text)) : NULL;
}

JNIEXPORT jbyteArray JNICALL Java_waveinfer_NativeJNI_text(JNIEnv* env, jclass type, jlong address) {
  (void)type;
  return wi_jni_text(env, (const char*)(intptr_t)address);
}

JNIEXPORT jobject JNICALL Java_waveinfer_NativeJNI_buffer(JNIEnv* env, jclass type, jlong address,
                                                          jlong bytes) {
  (void)type;
  return (*env)->NewDirectByteBuffer(env, (void*)(intptr_t)address, bytes);
}

/* Where a direct buffer begins, whatever its position. */
JNIEXPORT jlong JNICALL Java_waveinfer_NativeJNI_address(JNIEnv* env, jclass type, jobject buffer) {
  (void)type;
  return (jlong)(intptr_t)(*env)->GetDirectBufferAddress(env, buffer);
}
