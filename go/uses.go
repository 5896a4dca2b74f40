package waveinfer

import (
	"slices"
	"sync"
	"sync/atomic"
)

// sessionUses is what a session in C may use of Go's: shared with the tasks that work on it. The objects that the
// program sees have it, and what of it has to stay until C has released its own, handles have too.
type sessionUses struct {
	kept *sessionKept

	mutex sync.Mutex
	hooks []*logitsHook // one of these is in force: more than one only where a task may have set its own
	calls atomic.Bool   // whether a decode step may call back
}

// sessionKept refers to nothing that a program may refer to its sessions from.
type sessionKept struct {
	memory *pinnedMemory // the model's
	users  []*hookUser   // of the hooks
}

// set says which hooks may be in force.
func (u *sessionUses) set(hooks ...*logitsHook) {
	u.change(func([]*logitsHook) []*logitsHook { return slices.Clone(hooks) })
}

// add says that a hook will be in force, or the ones before it go on.
func (u *sessionUses) add(hook *logitsHook) {
	u.change(func(hooks []*logitsHook) []*logitsHook { return append(slices.Clone(hooks), hook) })
}

// remove says that a hook that was added will never be in force.
func (u *sessionUses) remove(hook *logitsHook) {
	u.change(func(hooks []*logitsHook) []*logitsHook {
		if i := slices.Index(hooks, hook); i >= 0 {
			return slices.Delete(slices.Clone(hooks), i, i+1)
		}
		return hooks
	})
}

// settle says that a hook came into force.
func (u *sessionUses) settle(hook *logitsHook) {
	u.change(func(hooks []*logitsHook) []*logitsHook {
		if i := slices.Index(hooks, hook); i > 0 {
			return slices.Clone(hooks[i:])
		}
		return hooks
	})
}

// change replaces the hooks: lists that were given out stay as they are.
func (u *sessionUses) change(hooks func(before []*logitsHook) []*logitsHook) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.hooks = hooks(u.hooks)
	users := make([]*hookUser, len(u.hooks))
	for i, hook := range u.hooks {
		users[i] = hook.user
	}
	u.kept.users = users
	u.calls.Store(slices.ContainsFunc(u.hooks, func(hook *logitsHook) bool { return hook.callback != nil }))
}

func (u *sessionUses) list() []*logitsHook {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.hooks
}
