// A job of Flink's own that runs until it is cancelled; for flink_end_to_end.py.
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
public class Sleeper {
  public static void main(String[] args) throws Exception {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    env.fromSequence(1, Long.MAX_VALUE).rebalance()
        .map(x -> { Thread.sleep(20); return x; }).returns(Long.class)
        .sinkTo(new DiscardingSink<>());
    env.execute(args[0]);
  }
}
