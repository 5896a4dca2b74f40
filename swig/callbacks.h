/* What SWIG's part of the Java binding needs by hand: memory, and the way back into Java. A callback is given to
 * the library as a trampoline and an id; class Callbacks knows the object of an id, so that one that comes late
 * finds nothing instead of freed memory. */
#ifndef WAVEINFER_SWIG_CALLBACKS_H
#define WAVEINFER_SWIG_CALLBACKS_H

#include <jni.h>

/* Up to the NUL; NULL gives null. */
jbyteArray wi_jni_text(JNIEnv* env, const char* text);

#endif
