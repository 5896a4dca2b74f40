// For what must be done in time, wall or processor: claimed of the optimised build, whose tests run one at a
// time. Under a sanitizer, where everything takes a multiple of its time and tests run side by side, the
// call is made and its time not judged.
#pragma once

#ifdef WI_SANITIZED
#define assert_in_time(condition) static_cast<void>(condition)
#else
#define assert_in_time(condition) assert_true(condition)
#endif
