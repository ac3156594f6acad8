//! Linearizability: is there an order of all operations, each at one moment between its call and its return, that the
//! sequential object would have given the same answers in?
//!
//! The search of Wing and Gong with Lowe's memory of what was tried. An operation whose fate its caller does not know
//! never returned: it may take effect at any moment after its call, or never. The search is exponential in what overlaps,
//! so it has a budget. The one rule: a history that the budget does not suffice for is undecided, never passed.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// A sequential object.
pub trait Model {
    /// What it remembers.
    type State: Clone + Eq + Hash + Debug;
    /// What is done to it, with the answer that was given.
    type Operation: Debug;

    /// The state after the operation; none when the object would have answered otherwise.
    fn step(&self, state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;

    /// Reports whether the operation only looks: leaving it out allows whatever was allowed with it.
    fn only_looks(&self, operation: &Self::Operation) -> bool;
}

/// One operation of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed<O> {
    /// When it was called.
    pub called_ns: u64,
    /// When its caller had the answer; none when it never came.
    pub returned_ns: Option<u64>,
    /// What it was, with its answer.
    pub operation: O,
}

/// What the search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// There is such an order.
    Order,
    /// There is none; the text tells how far the best attempt came.
    None(String),
    /// The budget was used up before either was certain.
    Undecided,
}

/// Which operations have their place in the order already: those before `first`, and the marked ones from there on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Placed {
    first: usize,
    /// Bits from `first` on, without trailing zeros.
    marks: Vec<u64>,
}

impl Placed {
    const NONE: Self = Self {
        first: 0,
        marks: Vec::new(),
    };

    fn has(&self, at: usize) -> bool {
        if at < self.first {
            return true;
        }
        let offset = at - self.first;
        self.marks
            .get(offset / 64)
            .is_some_and(|word| word >> (offset % 64) & 1 == 1)
    }

    fn with(&self, at: usize) -> Self {
        let mut next = self.clone();
        let offset = at - self.first;
        if next.marks.len() <= offset / 64 {
            next.marks.resize(offset / 64 + 1, 0);
        }
        next.marks[offset / 64] |= 1 << (offset % 64);
        let full = next.marks.iter().take_while(|word| **word == u64::MAX).count();
        next.marks.drain(..full);
        next.first += 64 * full;
        next
    }
}

/// Searches for an order. `budget` bounds how many configurations are looked at.
pub fn search<M: Model>(model: &M, initial: M::State, mut history: Vec<Timed<M::Operation>>, budget: usize) -> Found {
    history.sort_by_key(|timed| timed.called_ns);
    let answered = history.iter().filter(|timed| timed.returned_ns.is_some()).count();
    let mut open = vec![(Placed::NONE, initial, 0)];
    let mut seen = HashSet::new();
    let mut best: Option<(usize, String)> = None;
    while let Some((placed, state, done)) = open.pop() {
        if done == answered {
            return Found::Order;
        }
        if !seen.insert((placed.clone(), state.clone())) {
            continue;
        }
        if seen.len() > budget {
            return Found::Undecided;
        }
        let next = candidates(&history, &placed);
        if best.as_ref().is_none_or(|(most, _)| done > *most) {
            best = Some((done, stuck(&history, &next, &state, done)));
        }
        let before = open.len();
        for at in next {
            let timed = &history[at];
            let Some(after) = model.step(&state, &timed.operation) else {
                continue;
            };
            let returns = timed.returned_ns.is_some();
            let at_once = returns && after == state && model.only_looks(&timed.operation);
            let configuration = (placed.with(at), after, done + usize::from(returns));
            if at_once {
                // Nothing is lost by looking now.
                open.truncate(before);
                open.push(configuration);
                break;
            }
            open.push(configuration);
        }
        // What was called first is tried first.
        open[before..].reverse();
    }
    Found::None(best.map(|(_, text)| text).unwrap_or_default())
}

/// The operations that may come next: called before any that is still to be placed has returned.
fn candidates<O>(history: &[Timed<O>], placed: &Placed) -> Vec<usize> {
    let (mut next, mut first_return) = (Vec::new(), u64::MAX);
    for (at, timed) in history.iter().enumerate().skip(placed.first) {
        if timed.called_ns > first_return {
            break;
        }
        if !placed.has(at) {
            next.push(at);
            first_return = first_return.min(timed.returned_ns.unwrap_or(u64::MAX));
        }
    }
    next
}

/// Operations that a failure names.
const NAMED_MAX: usize = 6;

fn stuck<O: Debug, S: Debug>(history: &[Timed<O>], next: &[usize], state: &S, done: usize) -> String {
    let ms = |ns: u64| format!("{}.{:03}", ns / 1_000_000, ns / 1_000 % 1_000);
    let name = |at: &usize| {
        let timed = &history[*at];
        let until = timed.returned_ns.map_or("no answer".to_owned(), ms);
        format!("{:?} from {} ms to {until}", timed.operation, ms(timed.called_ns))
    };
    let named: Vec<String> = next.iter().take(NAMED_MAX).map(name).collect();
    format!(
        "after {done} operations the object is {state:?}, and none of these fits next: {}",
        named.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register of one number, which starts at 0.
    struct Number;

    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Use {
        Write(u64),
        Read(u64),
    }
    use Use::{Read, Write};

    impl Model for Number {
        type State = u64;
        type Operation = Use;

        fn step(&self, state: &u64, operation: &Use) -> Option<u64> {
            match operation {
                Write(value) => Some(*value),
                Read(value) => (value == state).then_some(*state),
            }
        }

        fn only_looks(&self, operation: &Use) -> bool {
            matches!(operation, Read(_))
        }
    }

    fn found(history: &[(u64, u64, Use)]) -> Found {
        let timed = |(called_ns, returned_ns, operation): &(u64, u64, Use)| Timed {
            called_ns: *called_ns,
            returned_ns: (*returned_ns > 0).then_some(*returned_ns),
            operation: operation.clone(),
        };
        search(&Number, 0, history.iter().map(timed).collect(), 10_000)
    }

    fn is_linearizable(history: &[(u64, u64, Use)]) -> bool {
        match found(history) {
            Found::Order => true,
            Found::None(_) => false,
            Found::Undecided => panic!("undecided: {history:?}"),
        }
    }

    #[test]
    fn one_after_the_other_a_read_sees_the_last_write() {
        assert!(is_linearizable(&[
            (1, 2, Write(5)),
            (3, 4, Read(5)),
            (5, 6, Write(6)),
            (7, 8, Read(6))
        ]));
        assert!(!is_linearizable(&[(1, 2, Write(5)), (3, 4, Write(6)), (5, 6, Read(5))]));
        assert!(!is_linearizable(&[(1, 2, Write(5)), (3, 4, Read(0))]));
    }

    #[test]
    fn read_during_a_write_may_see_it_or_not() {
        assert!(is_linearizable(&[(1, 9, Write(5)), (2, 3, Read(0))]));
        assert!(is_linearizable(&[(1, 9, Write(5)), (2, 3, Read(5))]));
        assert!(is_linearizable(&[(1, 9, Write(5)), (2, 3, Read(0)), (4, 5, Read(5))]));
    }

    #[test]
    fn two_reads_during_a_write_never_go_back() {
        assert!(!is_linearizable(&[(1, 9, Write(5)), (2, 3, Read(5)), (4, 5, Read(0))]));
    }

    #[test]
    fn two_readers_see_two_writes_in_one_order() {
        let writes = [(1, 20, Write(5)), (1, 20, Write(6))];
        let reads = |second: [u64; 2]| {
            let mut history = writes.to_vec();
            history.extend([(2, 3, Read(5)), (4, 5, Read(6))]);
            history.extend([(6, 7, Read(second[0])), (8, 9, Read(second[1]))]);
            history
        };
        assert!(is_linearizable(&reads([6, 6])));
        assert!(!is_linearizable(&reads([6, 5])));
    }

    #[test]
    fn write_without_an_answer_may_take_effect_late_or_never() {
        assert!(is_linearizable(&[(1, 0, Write(5)), (2, 3, Read(0)), (50, 60, Read(0))]));
        assert!(is_linearizable(&[(1, 0, Write(5)), (2, 3, Read(0)), (50, 60, Read(5))]));
        assert!(is_linearizable(&[
            (1, 0, Write(5)),
            (2, 3, Write(6)),
            (4, 5, Read(6)),
            (6, 7, Read(5))
        ]));
    }

    #[test]
    fn write_without_an_answer_takes_effect_once_and_not_before_its_call() {
        assert!(!is_linearizable(&[
            (1, 0, Write(5)),
            (2, 3, Read(5)),
            (4, 5, Write(6)),
            (6, 7, Read(5))
        ]));
        assert!(!is_linearizable(&[(1, 2, Read(5)), (3, 0, Write(5))]));
    }

    #[test]
    fn value_that_nobody_wrote_is_found_and_named() {
        let Found::None(text) = found(&[(1, 2, Write(5)), (3, 4, Read(7))]) else {
            panic!("a value came out of nothing");
        };
        assert!(text.contains("the object is 5") && text.contains("Read(7)"), "{text}");
    }

    #[test]
    fn what_the_budget_does_not_suffice_for_is_undecided() {
        // Twenty writes at once, and a read that none of them explains.
        let mut history: Vec<_> = (1..=20).map(|value| (1, 100, Write(value))).collect();
        history.push((1, 100, Read(99)));
        assert_eq!(found(&history), Found::Undecided);
        history.pop();
        assert_eq!(found(&history), Found::Order);
    }

    #[test]
    fn long_histories_cost_little_where_little_overlaps() {
        let pair = |n: u64| [(10 * n, 10 * n + 8, Write(n)), (10 * n + 1, 10 * n + 9, Read(n))];
        let history: Vec<_> = (1..3_000).flat_map(pair).collect();
        assert!(is_linearizable(&history));
    }
}
