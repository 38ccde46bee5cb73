"""The benchmark: Palmette's engines beside the products they cannot do without and beside what others do."""

from palmette.bench.engines import ENGINES as ENGINES
from palmette.bench.jobs import JOBS as JOBS
from palmette.bench.measure import Timing as Timing
from palmette.bench.run import QUICK as QUICK
from palmette.bench.run import Benchmark as Benchmark
from palmette.bench.run import benchmark as benchmark
from palmette.bench.scaling import CROWDS as CROWDS
from palmette.bench.workloads import WORKLOADS as WORKLOADS
from palmette.bench.workloads import Workload as Workload
