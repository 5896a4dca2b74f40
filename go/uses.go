package waveinfer

import (
	"slices"
	"sync"
)

// sessionUses is what a session in C may use of Go's: shared with the tasks that work on it.
type sessionUses struct {
	memory *pinnedMemory // the model's

	mutex sync.Mutex
	hooks []*logitsHook // one of these is in force: more than one only where a task may have set its own
}

// set says which hooks may be in force.
func (u *sessionUses) set(hooks ...*logitsHook) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.hooks = slices.Clone(hooks)
}

// add says that a hook will be in force, or the ones before it go on.
func (u *sessionUses) add(hook *logitsHook) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.hooks = append(slices.Clone(u.hooks), hook)
}

// remove says that a hook that was added will never be in force.
func (u *sessionUses) remove(hook *logitsHook) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	if i := slices.Index(u.hooks, hook); i >= 0 {
		u.hooks = slices.Delete(slices.Clone(u.hooks), i, i+1)
	}
}

// settle says that a hook came into force.
func (u *sessionUses) settle(hook *logitsHook) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	if i := slices.Index(u.hooks, hook); i > 0 {
		u.hooks = slices.Clone(u.hooks[i:])
	}
}

func (u *sessionUses) list() []*logitsHook {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.hooks
}

// hooked tells whether a decode step may call back.
func (u *sessionUses) hooked() bool {
	return slices.ContainsFunc(u.list(), func(hook *logitsHook) bool { return hook.callback != nil })
}
