//! Jobs by the claims that they are held by, as scripts are told of them.

use redis::Cmd;

use crate::queue::{Held, Lease};

/// What a script is told of one claim: its token, how many jobs, their ids. `places` are those of its jobs among all that were given.
pub(super) struct Group<'a> {
    pub(super) token: String,
    pub(super) places: &'a [usize],
}

/// Puts together what was claimed together, since a script asks once for each claim.
pub(super) fn by_claim<'a>(order: &'a mut Vec<usize>, leases: &[&Lease]) -> Vec<Group<'a>> {
    order.extend(0..leases.len());
    let of = |place: &usize| (leases[*place].epoch, leases[*place].owner.as_str());
    // Stable: within a claim the order stays as it was given.
    order.sort_by(|one, other| of(one).cmp(&of(other)));
    order
        .chunk_by(|one, other| of(one) == of(other))
        .map(|places| {
            let (epoch, owner) = of(&places[0]);
            Group { token: format!("{epoch}:{owner}"), places }
        })
        .collect()
}

/// Brings what was answered, claim by claim, into the order in which the jobs were given.
pub(super) fn in_order(order: &[usize], answers: &[Held]) -> Vec<Held> {
    let mut held = vec![Held::Lost; order.len()];
    for (place, answer) in order.iter().zip(answers) {
        held[*place] = *answer;
    }
    held
}

pub(super) fn add_groups<'a>(call: &'a mut Cmd, groups: &[Group<'_>], leases: &[&Lease]) -> &'a mut Cmd {
    for group in groups {
        call.arg(&group.token).arg(group.places.len());
        for place in group.places {
            call.arg(leases[*place].id.as_str());
        }
    }
    call
}
