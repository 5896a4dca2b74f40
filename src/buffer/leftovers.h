// Files that processes which were killed left in a folder: the next that makes one of the kind there removes them.
// Who makes one locks it while he lives; the lock ends with his process.
#pragma once

#include <sys/types.h>

namespace wi {

// Tells others that the writer of a file which has just been made, under a name that starts with their prefix, lives.
// False: one of them was faster, and the name is gone. Where files cannot be locked, nobody removes any.
bool lock_own(int file);

// Of this user, or of the one that a new file would be given to, in the folder, under names that start so.
void remove_leftovers(int folder, const char* prefix, uid_t given_to);

}  // namespace wi
