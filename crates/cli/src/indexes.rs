//! `pando create` and `pando drop`: whole indexes.
//!
//! A new index may be divided into partitions, each of which another process can own (`pando load --own`). A dropped index
//! gives all its blocks back to the pool.

use pando::{Config, IndexLayout, IndexOptions};

use crate::args::{CreateArgs, IndexArgs, PoolArgs};
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::pool;
use crate::signals::Interrupt;

pub fn create(args: &CreateArgs) -> Result<(), Failure> {
    let layout = args.columns.parse().map_err(Failure::bad_input)?;
    let schema = KeySchema::of_layout(&layout);
    let options = match (args.key_size, args.value_size) {
        (Some(key_size), Some(value_size)) => IndexOptions::fixed(key_size, value_size),
        _ => IndexOptions::bytes(),
    };
    let options = options
        .node_size(node_size(args.node_size)?)
        .subtree_level(args.subtree_level)
        .description(schema.description())
        .boundaries(boundaries(&args.boundaries, &schema)?);
    // Check before anything is created.
    let (name, PoolArgs { cache, .. }) = (&args.target.index, &args.target.pool);
    options.check(name, &Config::embedded().cache(*cache))?;
    pool::look(&args.target.pool, &args.new_pool, |cluster| {
        match !args.replace && cluster.index_names()?.contains(name) {
            true => Err(pando::Error::IndexExists { name: name.clone() }.into()),
            false => Ok(()),
        }
    })?;
    // An interrupt must not end the process before the pool is closed.
    Interrupt::listen()?;
    let config = pool::perhaps_new(&args.target.pool, &args.new_pool, 0)?;
    pool::with_cluster(config, |cluster| {
        if args.replace && cluster.index_names()?.contains(name) {
            cluster.drop_index(name)?;
        }
        cluster.create_index(name, &options)?;
        Ok(())
    })
}

pub fn drop(args: &IndexArgs) -> Result<(), Failure> {
    Interrupt::listen()?;
    pool::with_cluster(pool::existing(&args.pool)?, |cluster| Ok(cluster.drop_index(&args.index)?))
}

pub fn node_size(bytes: u64) -> Result<usize, Failure> {
    usize::try_from(bytes)
        .map_err(|_| Failure::bad_input(format_args!("nodes of {bytes} bytes are too large")))
}

/// Options of an index with this layout.
pub fn options_of(layout: IndexLayout) -> IndexOptions {
    match layout {
        IndexLayout::Fixed { key_size, value_size } => IndexOptions::fixed(key_size, value_size),
        IndexLayout::Bytes => IndexOptions::bytes(),
    }
}

/// Parses the keys at which partitions begin. An option is a comma-separated list, or one composite key with
/// commas between its columns.
pub fn boundaries(options: &[String], schema: &KeySchema) -> Result<Vec<Vec<u8>>, Failure> {
    let is_composite = schema.columns().contains(',');
    let keys: Vec<&str> = match is_composite {
        true => options.iter().map(String::as_str).collect(),
        false => options.iter().flat_map(|option| option.split(',')).collect(),
    };
    let mut keys: Vec<Vec<u8>> =
        keys.into_iter().map(|key| schema.prefix(key.as_bytes())).collect::<Result<_, _>>()?;
    keys.sort();
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err(Failure::bad_input(format_args!("the boundary `{}` comes twice", schema.display(&pair[0]))))
        }
        None => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_sorted_keys() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let plain = KeySchema::of_layout(&"str".parse().expect("valid"));
        assert_eq!(boundaries(&texts(&["m,c", "x"]), &plain).expect("valid"), [b"c", b"m", b"x"]);
        assert!(boundaries(&texts(&["m,m"]), &plain).is_err());
        let lines = KeySchema::of_layout(&"int,int".parse().expect("valid"));
        let two = boundaries(&texts(&["3,1", "5"]), &lines).expect("valid");
        assert_eq!(two.iter().map(Vec::len).collect::<Vec<_>>(), [16, 8]);
    }
}
