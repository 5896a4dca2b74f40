// Package abi has the structs of waveinfer.h as this build sees them, for the test that compares them with
// the library's manifest.
package abi

// #cgo pkg-config: waveinfer
// #include <waveinfer.h>
import "C"

import "reflect"

// Version is the header's WI_ABI_VERSION.
const Version = C.WI_ABI_VERSION

// Structs are the structs of waveinfer.h by name. Fields have the names that cgo gives them.
var Structs = map[string]reflect.Type{
	"wi_error":           reflect.TypeFor[C.wi_error](),
	"wi_runtime_params":  reflect.TypeFor[C.wi_runtime_params](),
	"wi_device_info":     reflect.TypeFor[C.wi_device_info](),
	"wi_policy_info":     reflect.TypeFor[C.wi_policy_info](),
	"wi_runtime_stats":   reflect.TypeFor[C.wi_runtime_stats](),
	"wi_reader":          reflect.TypeFor[C.wi_reader](),
	"wi_writer":          reflect.TypeFor[C.wi_writer](),
	"wi_model_params":    reflect.TypeFor[C.wi_model_params](),
	"wi_model_info":      reflect.TypeFor[C.wi_model_info](),
	"wi_token_info":      reflect.TypeFor[C.wi_token_info](),
	"wi_chat_message":    reflect.TypeFor[C.wi_chat_message](),
	"wi_chat_params":     reflect.TypeFor[C.wi_chat_params](),
	"wi_policy_params":   reflect.TypeFor[C.wi_policy_params](),
	"wi_text":            reflect.TypeFor[C.wi_text](),
	"wi_logit_bias":      reflect.TypeFor[C.wi_logit_bias](),
	"wi_sampling_params": reflect.TypeFor[C.wi_sampling_params](),
	"wi_session_params":  reflect.TypeFor[C.wi_session_params](),
	"wi_memory_plan":     reflect.TypeFor[C.wi_memory_plan](),
	"wi_event":           reflect.TypeFor[C.wi_event](),
	"wi_token_logprob":   reflect.TypeFor[C.wi_token_logprob](),
	"wi_prefill_params":  reflect.TypeFor[C.wi_prefill_params](),
	"wi_session_stats":   reflect.TypeFor[C.wi_session_stats](),
	"wi_task_params":     reflect.TypeFor[C.wi_task_params](),
	"wi_task_info":       reflect.TypeFor[C.wi_task_info](),
	"wi_kv_params":       reflect.TypeFor[C.wi_kv_params](),
}
