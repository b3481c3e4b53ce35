//! What a memory server says of itself to those who operate it: whom it hears, and what it does for its group.
//!
//! Nothing that is decided depends on it. It is what the server knows at the moment, and outdated when it arrives. A server
//! without copies answers too. The answer, in bytes:
//!
//! ```text
//! count 4, processes | is in a group 1, and then: view 8 | is in the view 1 | left of the lease 8 |
//!   count 4, volumes that it serves | count 4, volumes that it backs up | count 4, copies that it fills
//! process   number 8 | nanoseconds since its last request 8
//! volume    number 2
//! copy      volume 2 | whole bytes 8 | bytes 8
//! ```

use pando_fabric::Nanos;
use pando_fabric::codec::{BadField, Put, Reader};
use pando_member::VolumeId;

use crate::serve::HeardProcess;

/// Bytes of an encoded process, and of a copy that is being filled.
const PROCESS_BYTES: usize = 16;
const FILL_BYTES: usize = 18;

/// State of a memory server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCondition {
    /// Processes with connections, in the order of their numbers.
    pub processes: Vec<HeardProcess>,
    /// `None` for memory without copies.
    pub member: Option<MemberCondition>,
}

/// State of a memory server in its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberCondition {
    /// Epoch of the newest view that it knows.
    pub epoch: u64,
    /// Whether it is in that view.
    pub is_in: bool,
    /// What is left of its lease; 0 if it has none, and so serves nothing.
    pub lease_left_ns: Nanos,
    /// Volumes that it serves now. One whose last primary may still serve is not among them.
    pub serves: Vec<VolumeId>,
    /// Volumes of which it has another whole copy.
    pub backs_up: Vec<VolumeId>,
    /// Copies that it fills.
    pub fills: Vec<Fill>,
}

/// How far a copy is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub volume: VolumeId,
    /// Bytes that are whole.
    pub whole: u64,
    /// Bytes of the copy.
    pub bytes: u64,
}

impl ServerCondition {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(self.processes.len() as u32);
        for HeardProcess { number, silent_ns } in &self.processes {
            out.put_u64(*number);
            out.put_u64(*silent_ns);
        }
        out.push(self.member.is_some().into());
        let Some(member) = &self.member else { return out };
        out.put_u64(member.epoch);
        out.push(member.is_in.into());
        out.put_u64(member.lease_left_ns);
        for volumes in [&member.serves, &member.backs_up] {
            out.put_u32(volumes.len() as u32);
            volumes.iter().for_each(|volume| out.put_u16(volume.0));
        }
        out.put_u32(member.fills.len() as u32);
        for Fill { volume, whole, bytes } in &member.fills {
            out.put_u16(volume.0);
            out.put_u64(*whole);
            out.put_u64(*bytes);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadField> {
        let mut left = Reader::new(bytes);
        let process =
            |left: &mut Reader<'_>| Ok(HeardProcess { number: left.u64()?, silent_ns: left.u64()? });
        let processes =
            (0..left.count(PROCESS_BYTES)?).map(|_| process(&mut left)).collect::<Result<_, _>>()?;
        let member = if left.u8()? == 0 { None } else { Some(MemberCondition::decode(&mut left)?) };
        left.end()?;
        Ok(Self { processes, member })
    }
}

impl MemberCondition {
    fn decode(left: &mut Reader<'_>) -> Result<Self, BadField> {
        let volumes = |left: &mut Reader<'_>| -> Result<Vec<_>, BadField> {
            (0..left.count(size_of::<u16>())?).map(|_| left.u16().map(VolumeId)).collect()
        };
        let fill = |left: &mut Reader<'_>| {
            Ok(Fill { volume: VolumeId(left.u16()?), whole: left.u64()?, bytes: left.u64()? })
        };
        Ok(Self {
            epoch: left.u64()?,
            is_in: left.u8()? != 0,
            lease_left_ns: left.u64()?,
            serves: volumes(left)?,
            backs_up: volumes(left)?,
            fills: (0..left.count(FILL_BYTES)?).map(|_| fill(left)).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_read_as_it_was_written_and_a_part_of_it_is_refused() {
        let member = MemberCondition {
            epoch: 7,
            is_in: true,
            lease_left_ns: 900,
            serves: vec![VolumeId(1), VolumeId(4)],
            backs_up: vec![VolumeId(0)],
            fills: vec![Fill { volume: VolumeId(2), whole: 65_536, bytes: 1 << 29 }],
        };
        let processes =
            vec![HeardProcess { number: 1, silent_ns: 5 }, HeardProcess { number: 3, silent_ns: 0 }];
        for member in [None, Some(member)] {
            let condition = ServerCondition { processes: processes.clone(), member };
            let bytes = condition.encode();
            assert_eq!(ServerCondition::decode(&bytes), Ok(condition));
            for len in 0..bytes.len() {
                assert!(ServerCondition::decode(&bytes[..len]).is_err(), "{len}");
            }
            assert!(ServerCondition::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }
}
