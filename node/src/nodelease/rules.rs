//! The rules of the node lease as switches, so that a test can take one away and see its checker find the damage.
//!
//! Product code always runs with all of them: only `with_rules`, which tests call, can hand in anything else.

/// One switch per rule that the two machines keep. `true` everywhere in production.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A deadline counts from the asking, never from the receipt.
    pub deadline_from_asking: bool,
    /// An answer counts only for a question that this incarnation remembers.
    pub only_remembered: bool,
    /// A step needs a renewal that is still in force.
    pub step_in_force: bool,
    /// A step needs a renewal of the generation in the node's own applied state.
    pub step_generation: bool,
    /// A step needs the barrier of its renewal applied.
    pub step_barrier: bool,
    /// A question says whether its sender holds a renewal in force, and the leader minds it.
    pub deaf_is_silent: bool,
    /// Answers leave only after a quorum round begun after their question arrived.
    pub quorum_round: bool,
    /// Answers leave only after the leader applied an entry of its own term.
    pub own_term: bool,
    /// Answers leave only for the incarnation and generation in the leader's state.
    pub generation: bool,
    /// The conditions are judged when the answer leaves, not when the question came.
    pub judged_at_sending: bool,
    /// Once a node was proposed unreachable, that generation is never answered again.
    pub refuse_after_unreachable: bool,
    /// Loss is declared only when the wait has passed.
    pub lost_wait: bool,
    /// A leader's memory of a node begins empty with its term.
    pub empty_with_term: bool,
    /// Silence is counted in good ticks, not by subtraction.
    pub good_ticks: bool,
    /// The way back is believed only with the nonce of a refusal.
    pub return_nonce: bool,
    /// Losses per minute are capped.
    pub loss_cap: bool,
    /// A node that announced a quiet time is not silent in it.
    pub quiet: bool,
}

impl Rules {
    /// What production runs with.
    pub const ALL: Rules = Rules {
        deadline_from_asking: true,
        only_remembered: true,
        step_in_force: true,
        step_generation: true,
        step_barrier: true,
        deaf_is_silent: true,
        quorum_round: true,
        own_term: true,
        generation: true,
        judged_at_sending: true,
        refuse_after_unreachable: true,
        lost_wait: true,
        empty_with_term: true,
        good_ticks: true,
        return_nonce: true,
        loss_cap: true,
        quiet: true,
    };
}
