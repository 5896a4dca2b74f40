// For what must be done in time, wall or processor: claimed of the optimised build, whose tests run one at a
// time. Under a sanitizer or on an emulated processor, where everything takes a multiple of its time and tests run
// side by side, the call is made and its time not judged.
#pragma once

#if defined(WI_SANITIZED) || defined(WI_EMULATED)
#define assert_in_time(condition) static_cast<void>(condition)
#else
#define assert_in_time(condition) assert_true(condition)
#endif
