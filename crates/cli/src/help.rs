//! Examples at the end of the help.
//!
//! A test runs them verbatim, one after the other in an empty directory, so each may use the results of the
//! previous ones.

pub const EXAMPLES: &str = "\
Examples:
  printf 'plum\\npear\\napple\\n' > fruit.txt
  pando load fruit.txt --pool fruit.pando --index fruit
  pando get --pool fruit.pando --index fruit pear
  pando put --pool fruit.pando --index fruit quince 4
  pando scan --pool fruit.pando --index fruit --prefix p
  pando scan --pool fruit.pando --index fruit --reverse --limit 2 --keys-only
  pando del --pool fruit.pando --index fruit plum
  printf 'id,line,what\\n7,2,pears\\n7,1,plums\\n' > sold.csv
  pando load sold.csv --pool fruit.pando --index sold --key id:int,line:int
  pando get --pool fruit.pando --index sold 7,1
  pando scan --pool fruit.pando --index sold --prefix 7 --output json
  pando elf build sold.csv --pool fruit.pando --index sales --columns id,line,what
  pando elf query --pool fruit.pando --where \"what like 'p%' and line < 2\" --output csv --explain
  pando elf insert sold.csv --pool fruit.pando
  pando elf delete --pool fruit.pando --where \"what = 'pears'\"
  pando stats --pool fruit.pando
  pando check --pool fruit.pando
  pando dump fruit.pandodump --pool fruit.pando --index fruit
  pando restore fruit.pandodump --pool copy.pando
  pando backup create backups --pool fruit.pando --without-tables
  pando backup list backups
  pando backup verify backups
  pando backup restore backups --pool again.pando
  pando scan --pool copy.pando | pando load - --format text --pool fruit.pando --index again
  pando create --pool grove/ --index trees --memory-servers 2
  pando pool add-server --pool grove/
  pando pool drain-server 1 --pool grove/
  pando pool servers --pool grove/
  pando pool partitions --pool fruit.pando --index fruit
  pando create --pool fruit.pando --index nuts --boundaries h,p
  pando pool move-boundary --pool fruit.pando --index nuts --partition 0 --to k
  pando simulate --seeds 0..10 --faults torn
  pando bench --keys 100k --warmup 50k --ops 100k --cache 256KiB --workload write-intensive
  pando bench --keys 100k --warmup 50k --ops 100k --cache 1MiB --dist hotspot:0.9:0.1 --balance=5ms
  pando bench --fabric sim --threads 36 --keys 100k --warmup 50k --ops 100k --cache 256KiB --seed 7
  pando lab list

Sizes are written like 64KiB or 1.5GiB, counts like 500k or 20m. In keys and values \\xNN is a byte.
Exit status: 0, 1 if an operation failed, 2 for bad usage or input.";
