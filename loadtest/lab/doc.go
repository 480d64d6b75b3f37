// Package lab starts and stops the real parts that tests, benchmarks and people run kvip against: Apache Kafka on KRaft
// ([StartKafka]), Apache Kafka 1.1.1 on ZooKeeper ([StartKafkaZK]), a Consul agent ([StartConsul]), and any other program
// ([StartProcess]). No container is needed. It plants faults on the way ([StartFaultProxy]) and in peers ([StartFaultyPeer]),
// and is a command of its own ([Command]).
//
// What has to be fetched or built (Kafka's jars, Consul, class data archives) is kept in [CacheDir]: the first run pays.
// What runs keeps its data in a directory of its own under [os.TempDir] and is gone after Close; when the program that
// started it dies without calling Close, the kernel kills what it started and the next use of the lab removes its files.
//
// A context bounds the call that it is given to; what that call started lives until Close.
//
// The package knows nothing of kvip, so that a fault in kvip's own code cannot hide itself. It runs on Linux only.
package lab
