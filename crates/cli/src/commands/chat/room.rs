//! What is left of the context.

/// Room behind a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room(usize);

impl Room {
    /// What a context has left behind so many tokens; where there is nothing, what to do about it.
    pub(super) fn new(context: usize, prompt: usize) -> Result<Room, String> {
        match context.checked_sub(prompt) {
            Some(left @ 1..) => Ok(Room(left)),
            _ => Err(format!(
                "the conversation would have {prompt} tokens, and the context holds {context}: the message was not sent, and \
                 nothing is lost; /undo takes the last answer back, /clear begins anew, --context makes more room"
            )),
        }
    }

    /// The most tokens of an answer, of which `wanted` were wished for.
    pub(super) fn most(self, wanted: Option<usize>) -> usize {
        wanted.map_or(self.0, |n| n.min(self.0))
    }
}

/// What to say when an answer ended for want of room.
pub(super) fn full(context: usize) -> String {
    format!(
        "the context of {context} tokens is full; nothing is lost: /undo takes the last answer back, /save keeps the \
         conversation, /clear begins anew, --context makes more room"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_never_asks_for_more_than_there_is() {
        let room = Room::new(100, 90).unwrap();
        assert_eq!((room.most(None), room.most(Some(4)), room.most(Some(11))), (10, 4, 10));
        for prompt in [100, 101] {
            let e = Room::new(100, prompt).unwrap_err();
            assert!(e.contains("holds 100") && e.contains("/clear"), "{e}");
        }
    }
}
