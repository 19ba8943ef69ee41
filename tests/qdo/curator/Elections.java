import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderLatchListener;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.retry.RetryForever;

/** A contender: says on its output when it leads and when it does no more, and ends with its input. */
public class Elections {
    /** Arguments: servers, path, "lock-" or "latch-", the contender's name. */
    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], 6000, 6000, new RetryForever(100));
        client.start();
        if (arguments[2].equals("latch-")) {
            LeaderLatch latch = new LeaderLatch(client, arguments[1], arguments[3]);
            latch.addListener(new LeaderLatchListener() {
                @Override
                public void isLeader() {
                    System.out.println("leading");
                }

                @Override
                public void notLeader() {
                    System.out.println("following");
                }
            });
            latch.start();
            System.in.read();
            latch.close();
        } else {
            LeaderSelector selector = new LeaderSelector(client, arguments[1], new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework same) throws Exception {
                    System.out.println("leading");
                    try {
                        Thread.sleep(Long.MAX_VALUE);
                    } finally {
                        System.out.println("following");
                    }
                }
            });
            selector.setId(arguments[3]);
            selector.autoRequeue();
            selector.start();
            System.in.read();
            selector.close();
        }
        client.close();
    }
}
