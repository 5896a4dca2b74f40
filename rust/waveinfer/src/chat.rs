use std::ffi::CString;
use std::ptr::null;
use std::time::{SystemTime, UNIX_EPOCH};

use waveinfer_sys::*;

use crate::call::{c_string, sized};
use crate::error::Result;

/// One message of a conversation.
///
/// ```
/// use waveinfer::ChatMessage;
/// let asked = ChatMessage::user("What is the weather in Ghent?");
/// let called = ChatMessage::new("assistant").fields_json(r#"{"content": null, "tool_calls": []}"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ChatMessage {
    role: String,
    content: Option<Vec<u8>>,
    fields_json: Option<String>,
}

impl ChatMessage {
    /// Without content: an empty text, or what the fields call content. The role is "system", "user", "assistant",
    /// "tool" or what the template knows; do not take roles from strangers.
    pub fn new(role: impl Into<String>) -> Self {
        Self { role: role.into(), content: None, fields_json: None }
    }

    /// What the system says.
    pub fn system(content: impl AsRef<[u8]>) -> Self {
        Self::new("system").content(content)
    }

    /// What the user says.
    pub fn user(content: impl AsRef<[u8]>) -> Self {
        Self::new("user").content(content)
    }

    /// What the model said.
    pub fn assistant(content: impl AsRef<[u8]>) -> Self {
        Self::new("assistant").content(content)
    }

    /// What a tool gave.
    pub fn tool(content: impl AsRef<[u8]>) -> Self {
        Self::new("tool").content(content)
    }

    /// Its text: bytes, UTF-8 by intent.
    pub fn content(mut self, content: impl AsRef<[u8]>) -> Self {
        self.content = Some(content.as_ref().to_vec());
        self
    }

    /// A JSON object: more fields of the message (tool_calls, tool_call_id, name, ...), which must not name role,
    /// nor content beside a [`content`](Self::content).
    pub fn fields_json(mut self, json: impl Into<String>) -> Self {
        self.fields_json = Some(json.into());
        self
    }
}

/// How a conversation is rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ChatOptions {
    add_generation_prompt: bool,
    tools_json: Option<String>,
    variables_json: Option<String>,
    now: Option<SystemTime>,
}

impl ChatOptions {
    /// No flags, no tools, no variables, the clock's time.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends with the opening of the assistant's answer. Default: no.
    pub fn add_generation_prompt(mut self, add: bool) -> Self {
        self.add_generation_prompt = add;
        self
    }

    /// A JSON array of function schemas. Default: no tools.
    pub fn tools_json(mut self, json: impl Into<String>) -> Self {
        self.tools_json = Some(json.into());
        self
    }

    /// A JSON object of what the template asks for by name, as `{"enable_thinking": false}`; it must not name
    /// messages, tools or add_generation_prompt. Default: none.
    pub fn variables_json(mut self, json: impl Into<String>) -> Self {
        self.variables_json = Some(json.into());
        self
    }

    /// For templates that print a date, in this process's time zone. Default: the clock's.
    pub fn now(mut self, now: SystemTime) -> Self {
        self.now = Some(now);
        self
    }
}

/// A conversation as the library takes it.
pub(crate) struct RawChat {
    messages: Vec<wi_chat_message>,
    params: wi_chat_params,
    _texts: Vec<CString>, // that these point to
}

impl RawChat {
    pub(crate) fn new(messages: &[ChatMessage], options: &ChatOptions) -> Result<Self> {
        let mut texts = Vec::new();
        let mut keep = |name, text: Option<&str>| -> Result<_> {
            let Some(text) = text else { return Ok(null()) };
            texts.push(c_string(name, text)?);
            Ok(texts[texts.len() - 1].as_ptr())
        };
        let convert = |message: &ChatMessage| {
            let content = message.content.as_deref();
            Ok(sized!(wi_chat_message {
                role: keep("role", Some(&message.role))?,
                content: content.map_or(null(), |text| text.as_ptr().cast()),
                content_length: content.map_or(0, |text| text.len() as u64),
                fields_json: keep("fields_json", message.fields_json.as_deref())?,
            }))
        };
        let converted = messages.iter().map(convert).collect::<Result<_>>()?;
        let since = |now: SystemTime| match now.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_secs() as i64,
            Err(before) => -(before.duration().as_secs() as i64),
        };
        let params = sized!(wi_chat_params {
            flags: if options.add_generation_prompt { WI_CHAT_ADD_GENERATION_PROMPT } else { 0 },
            tools_json: keep("tools_json", options.tools_json.as_deref())?,
            variables_json: keep("variables_json", options.variables_json.as_deref())?,
            now: options.now.map_or(0, since),
        });
        Ok(Self { messages: converted, params, _texts: texts })
    }

    /// messages, count and params of a call, valid as long as this and the messages that it was made of.
    pub(crate) fn arguments(&self) -> (*const wi_chat_message, u64, *const wi_chat_params) {
        (self.messages.as_ptr(), self.messages.len() as u64, &self.params)
    }
}
